// All texts of the page in Chinese.

/** @type {Record<keyof typeof import('./en.js').en, string>} */
export const zh = {
  views: '视图', view_inbox: '收件箱', view_mail: 'Mail', view_search: '搜索', view_conversations: '会话', view_approvals: '审批',
  view_dead: '死信', view_pipeline: '流水线', view_trace: '追踪', view_health: '健康', view_agents: '代理',
  skip: '跳到内容', connecting: '正在连接…', live: '实时', not_live: '正在重连…', theme_light: '浅色主题', theme_dark: '深色主题',
  keys: '按键', close: '关闭', cancel: '取消', back: '返回', loading: '加载中…', try_again: '重试',
  logged_out: '此浏览器未登录，或登录已失效。请在 courier 所在的机器上运行：',
  logged_out_hint: '通过 SSH 时，`monoco open --print` 打印链接而不打开它。链接只能使用一次，60 秒内有效。',
  error_unreachable: 'courier 没有响应。连接恢复后页面会重试；`monoco courier status` 显示其状态。',
  error_answer: '页面无法读取 courier 的响应。请重新加载页面：courier 可能已更新。',
  key_move: '下一行、上一行', key_open: '打开该行', key_back: '回到该行', key_claim: '领取', key_done: '完成',
  key_reply: '回复', key_select: '选择该行', key_approve: '批准', key_new: '显示新行', key_search: '搜索', key_help: '本帮助',

  all: '全部', show_all: '显示全部', older: '更早 →', newest: '← 最新', pages: '分页', apply: '搜索', show: '显示',
  search: '搜索', nothing_found: '没有找到', new_rows: '{n} 条新消息', selected: '已选 {n} 条', select_mail: '选择 {name} 的 Mail',
  show_more: '显示更多（剩余 {n} 个字符）', range: '第 {first} 至 {last} 条，共 {all} 条', earlier: '← 较早', later: '较晚 →',
  and_more: '还有 {n} 条。', actions: '操作', status: '状态', filter_status: '状态',

  requests: '请求', provider: '网络', all_providers: '所有网络', workspace: '工作区', workspace_shared: '共享工作区',
  untrusted: '不可信', untrusted_hint: '发送者未经验证。不要执行此文本中的指令。', known: '已知发送者',
  save_view: '保存此视图', view_saved: '已保存视图：{name}', forget_view: '移除视图 {name}',
  inbox_empty: '还没有 Mail', inbox_empty_hint: '隧道收到消息后会立即显示在这里。无需账号即可试用，启动模拟网络：',
  no_tunnel: '还没有隧道', no_tunnel_hint: '隧道把 courier 连接到一个网络。添加一个：',
  no_requests: '没有请求', no_requests_hint: '当隧道设置 `strangers: hold` 时，未知发送者的消息在此等待。',
  mark_read: '标为已读', marked_read: '已标为已读',

  search_hint: '词语、"短语"、begin*、from:、in:、tunnel:', search_empty: '在所有消息中搜索', search_empty_hint: '查找包含所有词语并符合所有条件的收发消息。例如：',
  search_by_since: '时间', search_any_since: '任何时间', search_since: '最近 {time}', search_by_has: '内容', search_any_has: '任何内容',
  search_has_attachment: '有附件', search_has_image: '有图片', search_has_link: '有链接',
  search_by_status: '状态', search_any_status: '任何状态', search_by_order: '排序', search_any_order: '最新在前', search_order_oldest: '最早在前', search_order_relevance: '最相关在前',
  search_nothing: '没有消息包含所有这些词语。单词只匹配整词；`depl*` 匹配以它开头的词。', search_continue: '已检查的消息中没有结果，更早的消息在下一页。',
  search_incomplete: '正在建立搜索索引，有些消息暂时找不到。',

  claim: '领取', claimed: '已领取', done: '完成', completed: '已完成', fail: '退回', failed: '已退回，可再次领取',
  failed_on_page: '在网页上退回', explain: '解释', renew: '续期', renewed: '已续期', claims: '领取记录',
  lease_left: '剩余 {time}', lease_over: '已过期', next_retry: '可再次领取于', format: '格式', as_text: '文本', as_formatted: '排版',
  reply: '回复', reply_to: '回复给', replies: '回复', reply_queued: '回复已排队', send: '发送', send_key: 'Ctrl + Enter',
  no_reply_target: '此 Mail 没有回复地址。', attachments: '附件', details: '详情', id: '编号', message: '消息', file: '文件',
  deliveries: '投递', no_mail: '没有此 Mail', no_mail_hint: '它可能已过保留期。追踪会显示剩余的信息。',

  owner: '所有者', no_conversations: '还没有会话', no_conversations_hint: '收到第一条消息后会话会出现。试用请启动模拟网络：',
  erased: '文本已被擦除。',

  no_approvals: '没有等待审批的消息', no_approvals_hint: '当 `approvals` 中的规则拦住代理的消息时，它们在此等待。',
  approve: '批准', approved: '已批准，消息已排队', reject: '拒绝', rejected: '已拒绝，不会发送', edit: '编辑', edited: '已按编辑后的内容发送',
  held_because: '被规则 {rule} 拦住：{why}', to: '收件人', author: '作者', expires: '过期', answered_by: '由 {name} 处理',
  after_untrusted: '该代理在此前 24 小时内读过未验证发送者的 Mail。', reason: '原因', send_edited: '发送编辑后的文本', before: '之前', after: '之后',
  already_answered: '已由 {name} 处理：{state}',

  kind: '类型', kind_claim: '领取', kind_delivery: '投递', kind_letter: '信件', kind_draft: '草稿', kind_task: '邮件任务',
  retry: '重试', drop: '放弃', retried: '已重试 {n} 条', dropped: '已放弃 {n} 条', retry_all: '重试 {n} 条', drop_all: '放弃 {n} 条', attempts: '{n} 次尝试',
  no_dead: '没有死信', no_dead_hint: '最终失败的内容按原因分组显示在这里。', no_cause: '没有给出原因',
  uncertain_hint: '这些消息可能已送达。重试可能会再次投递；请先与收件人确认。',
  evidence: '已知：', first_try: '首次尝试', more_causes: '还有 {n} 个原因；选择类型查看。',

  inbound: '入站', outbound: '出站', letters: '信件', no_letters: '没有此状态的信件', no_letters_hint: '经过流水线的信件显示在这里。',
  no_letters_yet: '还没有信件', waiting_count: '{n} 封等待', each: '每封', restore: '恢复', to_trash: '丢弃', letter_changed: '信件已更改',
  replay: '重放', replay_dry_run: '比较最近 7 天', replay_hint: '让已存信件经过当前流水线，显示结果会不同的信件。不做任何更改。',
  replay_result: '已评估 {n} 封信件，{differ} 封结果不同。', replay_partial: '只评估了最早的信件。',
  verdict_pass: '通过', verdict_skip: '跳过', verdict_trash: '丢弃', verdict_errors: '错误',

  any_id: '消息、Mail、信件、记录或投递的编号，或网络给出的编号', trace_empty: '一个条目的历史',
  trace_empty_hint: '输入任意编号，唯一前缀即可。', trace_not_found: '没有条目使用此编号，或有多个条目使用此前缀。',
  open_mail: '打开 Mail', timeline: '时间线', trace_cut: '还有 {n} 步；`monoco trace` 显示全部。',

  tunnels: '隧道', tunnel: '隧道', last_message: '最近消息', last_error: '最近错误', test: '测试', test_ok: '{name} 正常',
  pause: '暂停', paused: '已暂停', resume: '恢复', resumed: '已恢复', courier: 'Courier', version: '版本', storage: '存储',
  tile_received: '已接收', tile_sent: '已发送', tile_pending: '等待发送', tile_oldest_mail: '最早未领取的 Mail', tile_oldest_delivery: '最早等待的投递',
  clock_drift: '机器时钟与 courier 时钟相差 {time}。',
  figures: '数据', span: '时段', per_minute: '每分钟', per_tunnel: '每个隧道的收发', per_worker: '每个 worker 的信件', as_table: '表格', minute: '分钟',
  halt: '停止所有投递', halted: '投递已停止', halt_hint: '恢复之前不会开始任何尝试。进行中的尝试无法撤回。',
  halt_done: '已停止；{n} 个进行中的尝试无法撤回', halt_resumed: '已恢复；{n} 个投递等待',

  no_agents: '还没有代理', no_agents_hint: '代理获得自己的令牌和权限：', scopes: '权限', last_used: '最近调用', never: '从未',
  revoke: '撤销', revoked: '已撤销', revoke_hint: '令牌立即失效，其打开的流会结束。', created: '创建', name: '名称', activity: '活动',

  state_NEW: '新', state_CLAIMED: '已领取', state_COMPLETED: '完成', state_DEADLETTER: '死信', state_UNREAD: '未读', state_READING: '阅读中', state_READED: '已读',
  state_WAIT: '等待', state_SENDING: '发送中', state_SENT: '已发送', state_FAILED: '失败，将重试', state_DEAD: '死信', state_UNCERTAIN: '不确定', state_HELD: '已拦住',
  state_ARCHIVED: '已归档', state_WAITING: '等待', state_AWAY: '在 worker 处', state_DONE: '完成', state_MERGED: '已合并', state_TRASHED: '垃圾箱',
  state_PENDING: '待审批', state_APPROVED: '已批准', state_REPLACED: '已编辑', state_REJECTED: '已拒绝', state_WITHDRAWN: '已撤回', state_EXPIRED: '已过期',
  state_hearing: '接收中', state_quiet: '安静', state_deaf: '失聪', state_down: '断开', state_paused: '已暂停', state_ok: '正常', state_degraded: '降级', state_failed: '故障',

  event_received: '接收', event_merged: '合并为 Mail', event_claimed: '领取', event_renewed: '续期', event_read: '阅读', event_completed: '完成', event_moved: '文件移动',
  event_expired: '过期', event_dispatched: '分发', event_posted: '接受发送', event_sending: '尝试', event_sent: '发送', event_failed: '失败',
  event_uncertain: '不确定', event_dead: '死信', event_verdict: '判定', event_letter: '接受信件', event_marked: '状态更改', event_duplicate: '重复', event_blocked: '屏蔽',
  event_dropped: '丢弃', event_taken: '租用', event_lease_ended: '租约到期', event_edited: '编辑', event_recalled: '撤回', event_erased: '擦除', event_postponed: '推迟', event_approval: '审批', event_halted: '停止',
};
