//! The questions of a provider: what `monoco tunnel add` asks for to configure a new tunnel.

/// Any value of the key in [`SetupQuestion::only_if`].
pub const ANY_VALUE: &str = "";

/// One value that a new tunnel needs or can have. A provider lists its questions beside its
/// config, in the order in which they are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetupQuestion {
    /// The key in the tunnel's section; `imap.host` is the key `host` of the section `imap`.
    pub key: &'static str,
    /// What is asked for, such as `bot token (xoxb-…)`.
    pub prompt: &'static str,
    /// Whether the value is a secret. Then the file names its source, with the keys `{key}`,
    /// `{key}_file` and `{key}_command`, and never the secret itself.
    pub secret: bool,
    pub required: bool,
    /// The value that the provider uses when the key is not set. It is shown, not written.
    pub default: Option<&'static str>,
    /// Another key and its value: the question is asked only when the key has that value, or
    /// any value when that is [`ANY_VALUE`].
    pub only_if: Option<(&'static str, &'static str)>,
}

impl SetupQuestion {
    pub const fn required(key: &'static str, prompt: &'static str) -> Self {
        let (secret, required, default, only_if) = (false, true, None, None);
        Self { key, prompt, secret, required, default, only_if }
    }

    pub const fn optional(key: &'static str, prompt: &'static str) -> Self {
        Self { required: false, ..Self::required(key, prompt) }
    }

    pub const fn with_default(self, default: &'static str) -> Self {
        Self { default: Some(default), ..self }
    }

    pub const fn secret(self) -> Self {
        Self { secret: true, ..self }
    }

    pub const fn only_if(self, key: &'static str, value: &'static str) -> Self {
        Self { only_if: Some((key, value)), ..self }
    }
}
