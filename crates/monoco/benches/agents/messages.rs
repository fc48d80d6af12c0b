//! Messages in three languages, different for each number and the same in each run.

use std::fmt::Write as _;

const CHINESE: [&str; 24] = [
    "部署",
    "服务器",
    "今天",
    "我们",
    "数据库",
    "更新",
    "失败",
    "成功",
    "请",
    "检查",
    "日志",
    "用户",
    "订单",
    "支付",
    "系统",
    "问题",
    "已经",
    "修复",
    "版本",
    "发布",
    "会议",
    "明天",
    "文件",
    "的",
];

const JAPANESE: [&str; 20] = [
    "サーバー",
    "再起動",
    "しました",
    "データ",
    "更新",
    "確認",
    "お願いします",
    "エラー",
    "が",
    "発生",
    "ログ",
    "を",
    "見て",
    "ください",
    "明日",
    "会議",
    "資料",
    "送ります",
    "完了",
    "東京",
];

const ENGLISH: [&str; 30] = [
    "deploy",
    "server",
    "the",
    "build",
    "is",
    "red",
    "green",
    "please",
    "check",
    "log",
    "of",
    "user",
    "order",
    "payment",
    "failed",
    "again",
    "today",
    "version",
    "release",
    "meeting",
    "with",
    "team",
    "database",
    "migration",
    "done",
    "error",
    "timeout",
    "after",
    "seconds",
    "retry",
];

/// A small generator of random numbers, so that each run has the same messages.
pub struct Words(u64);

impl Words {
    pub const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap_or(0) % limit
    }

    /// One character of the common Chinese ones, so that pairs are as varied as in real texts.
    fn character(&mut self) -> char {
        // The first 2,500 of the block: as many as a newspaper uses.
        u32::try_from(self.below(2_500))
            .ok()
            .and_then(|at| char::from_u32(0x4e00 + at))
            .unwrap_or('一')
    }
}

/// The text of message `number`: about 350 bytes, as in the measurements of the design.
pub fn text(number: u64) -> String {
    let mut words = Words::new(number + 1);
    let mut text = format!("#{number} ");
    match number % 3 {
        0 => {
            for _ in 0..50 {
                text.push_str(CHINESE[words.below(CHINESE.len())]);
                text.push(words.character());
                if words.below(6) == 0 {
                    text.push('，');
                }
            }
        }
        1 => {
            for _ in 0..30 {
                text.push_str(JAPANESE[words.below(JAPANESE.len())]);
                if words.below(5) == 0 {
                    text.push('。');
                }
            }
        }
        _ => {
            for _ in 0..55 {
                text.push_str(ENGLISH[words.below(ENGLISH.len())]);
                text.push(' ');
                if words.below(8) == 0 {
                    let _ = write!(text, "id{} ", words.below(1_000_000));
                }
            }
        }
    }
    text
}

/// A batch of dispatches as JSON lines, and the bytes of its texts.
pub fn batch(first: u64, count: u64) -> (String, u64) {
    let (mut lines, mut bytes) = (String::new(), 0);
    for number in first..first + count {
        let text = text(number);
        bytes += text.len() as u64;
        let _ = writeln!(
            lines,
            r#"{{"msg":{{"from":"did:web:ann","to":["did:monoco:me"],"kind":"chat","content":{{"content":"{text}"}}}}}}"#
        );
    }
    (lines, bytes)
}
