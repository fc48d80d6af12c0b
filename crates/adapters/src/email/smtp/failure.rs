//! Classifies what can go wrong in an SMTP session as temporary, permanent or unknown.

use std::fmt;
use std::time::Duration;

use monoco_core::retry::Failure;

use super::reply::SmtpReply;

/// The step of a session in which something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SmtpStage {
    Greeting,
    Ehlo,
    StartTls,
    Auth,
    /// RSET, before a connection is used again.
    Reset,
    Mail,
    Rcpt,
    Data,
    /// While the mail is sent, before the final dot.
    Content,
    /// After the final dot.
    End,
}

/// Why a session cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SmtpError {
    /// The server answered, but not with success.
    Rejected { stage: SmtpStage, reply: SmtpReply },
    /// The connection was lost, the server was silent for too long, or it sent something that
    /// is not a reply.
    Lost { stage: SmtpStage, why: String },
    /// The client stopped by itself, or could not connect.
    Stopped(Failure),
}

impl SmtpError {
    /// Tells whether the connection can be used again after this error.
    pub fn is_connection_usable(&self) -> bool {
        match self {
            // 421 announces that the server closes the connection.
            Self::Rejected { stage, reply } => {
                reply.code != 421
                    && matches!(
                        stage,
                        SmtpStage::Mail | SmtpStage::Rcpt | SmtpStage::Data | SmtpStage::End
                    )
            }
            Self::Lost { .. } | Self::Stopped(_) => false,
        }
    }
}

/// Classifies an error. `peer` is the server; a rejected login is retried after `login_pause`.
///
/// Codes: RFC 5321 section 4.2.1 (4yz: try again, 5yz: do not), RFC 4954 section 6 (AUTH),
/// RFC 3207 (STARTTLS), RFC 5321 section 4.5.3.2 (the outcome is unknown only after the final dot).
pub fn failure(error: SmtpError, peer: &str, login_pause: Duration) -> Failure {
    let (stage, reply) = match error {
        SmtpError::Stopped(failure) => return failure,
        SmtpError::Lost { stage: SmtpStage::End, why } => {
            let detail = format!("{peer}: {why} after the whole mail was sent");
            return Failure::Unknown { detail, error_code: None };
        }
        SmtpError::Lost { stage, why } => {
            return temporary(format!("{peer}: {why} {stage}"), None);
        }
        SmtpError::Rejected { stage, reply } => (stage, reply),
    };
    let detail = format!("{peer} answered {stage}: {}", reply.shown());
    let error_code = Some(reply.error_code());
    match (stage, reply.code) {
        // Wrong password, expired token, or no encryption. This is about the account and not about
        // the message, so the message waits until the account works again.
        (SmtpStage::Auth, 500..) => Failure::Temporary {
            detail: format!("{detail}; check username, password and `auth`"),
            retry_after_ms: u64::try_from(login_pause.as_millis()).ok(),
            error_code,
        },
        (SmtpStage::StartTls, 500..) => {
            temporary(format!("{detail}; nothing is sent without encryption"), error_code)
        }
        // A pooled connection is replaced; the message was not involved.
        (SmtpStage::Reset, _) => temporary(detail, error_code),
        // Greylisting (450, 451), full mailbox (452), closing (421), rate limits (4.7.x).
        (_, 400..500) => temporary(detail, error_code),
        // No mailbox (550), too large (552), not allowed (530, 550, 553, 554).
        (_, 500..) => Failure::Permanent { detail, error_code },
        // A reply of another class after the final dot does not tell whether the server has the
        // mail.
        (SmtpStage::End, _) => Failure::Unknown { detail, error_code },
        _ => temporary(format!("{detail}; not expected here"), error_code),
    }
}

fn temporary(detail: String, error_code: Option<String>) -> Failure {
    Failure::Temporary { detail, retry_after_ms: None, error_code }
}

impl fmt::Display for SmtpStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Greeting => "at the greeting",
            Self::Ehlo => "at EHLO",
            Self::StartTls => "at STARTTLS",
            Self::Auth => "at AUTH",
            Self::Reset => "at RSET",
            Self::Mail => "at MAIL FROM",
            Self::Rcpt => "at RCPT TO",
            Self::Data => "at DATA",
            Self::Content => "before the end of the mail",
            Self::End => "at the end of the mail",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(300);

    const STAGES: [SmtpStage; 10] = [
        SmtpStage::Greeting,
        SmtpStage::Ehlo,
        SmtpStage::StartTls,
        SmtpStage::Auth,
        SmtpStage::Reset,
        SmtpStage::Mail,
        SmtpStage::Rcpt,
        SmtpStage::Data,
        SmtpStage::Content,
        SmtpStage::End,
    ];

    fn kind(failure: &Failure) -> &'static str {
        match failure {
            Failure::Temporary { .. } => "temporary",
            Failure::Permanent { .. } => "permanent",
            Failure::Unknown { .. } => "unknown",
        }
    }

    fn rejected(stage: SmtpStage, code: u16, text: &str) -> Failure {
        let reply = SmtpReply { code, lines: vec![text.to_owned()] };
        failure(SmtpError::Rejected { stage, reply }, "mx:25", PAUSE)
    }

    #[test]
    fn every_stage_and_code_is_classified() {
        for stage in STAGES {
            let is_account =
                matches!(stage, SmtpStage::Auth | SmtpStage::StartTls | SmtpStage::Reset);
            let is_end = stage == SmtpStage::End;
            for (code, want) in [
                (421, "temporary"),
                (450, "temporary"),
                (451, "temporary"),
                (452, "temporary"),
                (454, "temporary"),
                (499, "temporary"),
                (500, if is_account { "temporary" } else { "permanent" }),
                (530, if is_account { "temporary" } else { "permanent" }),
                (535, if is_account { "temporary" } else { "permanent" }),
                (550, if is_account { "temporary" } else { "permanent" }),
                (552, if is_account { "temporary" } else { "permanent" }),
                (554, if is_account { "temporary" } else { "permanent" }),
                (599, if is_account { "temporary" } else { "permanent" }),
                (334, if is_end { "unknown" } else { "temporary" }),
                (354, if is_end { "unknown" } else { "temporary" }),
            ] {
                let found = rejected(stage, code, "x");
                assert_eq!(kind(&found), want, "{stage} {code}: {found:?}");
                assert_eq!(found.error_code(), Some(code.to_string().as_str()));
            }
            let lost = failure(
                SmtpError::Lost { stage, why: "connection closed".to_owned() },
                "mx",
                PAUSE,
            );
            assert_eq!(kind(&lost), if is_end { "unknown" } else { "temporary" }, "{lost:?}");
        }
    }

    #[test]
    fn failures_say_what_the_server_said_and_when() {
        let found = rejected(SmtpStage::Rcpt, 550, "5.1.1 no such user");
        assert_eq!(found.detail(), "mx:25 answered at RCPT TO: 550 5.1.1 no such user");
        assert_eq!(found.error_code(), Some("5.1.1"));
        let Failure::Temporary { retry_after_ms, .. } = rejected(SmtpStage::Auth, 535, "5.7.8 no")
        else {
            panic!()
        };
        assert_eq!(retry_after_ms, Some(300_000));
        let lost = SmtpError::Lost { stage: SmtpStage::End, why: "no reply in 600 s".to_owned() };
        assert_eq!(
            failure(lost, "mx", PAUSE).detail(),
            "mx: no reply in 600 s after the whole mail was sent"
        );
    }
}
