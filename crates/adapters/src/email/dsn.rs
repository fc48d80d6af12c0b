//! Reads delivery status notifications (RFC 3464): what became of a mail that was sent.
//!
//! A report proves nothing by itself, because anyone can send one. The courier accepts it
//! only when [`DeliveryReport::envelope_id`] is the secret token of the delivery. Bounces in
//! other formats are ordinary mails.

use monoco_mime::{MailPart, ParsedMail, field_groups, read_mail};

/// Bytes of a status part, and of a returned header, that are read.
const MAX_STATUS_BYTES: usize = 256 << 10;
/// Limit of recipients that are read from one report.
const MAX_REPORTED_RECIPIENTS: usize = 500;
/// Longest diagnostic text, in bytes.
const MAX_DIAGNOSTIC_BYTES: usize = 1_024;

/// A report about one mail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeliveryReport {
    /// The `ENVID` that the mail was sent with.
    pub envelope_id: Option<String>,
    /// The server that reports, without the type before it.
    pub reporting_mta: Option<String>,
    /// The id of the mail that the report returns, with its angle brackets.
    pub message_id: Option<String>,
    pub recipients: Vec<RecipientReport>,
}

/// What became of a mail for one recipient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecipientReport {
    /// The address that the reporting server used.
    pub final_recipient: String,
    /// The address that the mail was sent to, when the server knows it.
    pub original_recipient: Option<String>,
    pub action: ReportedAction,
    /// The status code of RFC 3463, such as `5.1.1`.
    pub status: Option<String>,
    /// What the server of the recipient said.
    pub diagnostic: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportedAction {
    Failed,
    /// The server still tries.
    Delayed,
    Delivered,
    /// Passed on to a server that sends no reports.
    Relayed,
    /// Delivered to the members of a list.
    Expanded,
}

/// Reads the report in a mail. `None` when the mail is no report about a delivery, or one
/// without any recipient.
pub fn delivery_report(mail: &ParsedMail<'_>) -> Option<DeliveryReport> {
    let is_report = mail.mime_type == "multipart/report"
        && mail.report_type.as_deref() == Some("delivery-status");
    if !is_report {
        return None;
    }
    let part = |kinds: [&str; 2]| {
        mail.attachments.iter().find(|part| kinds.contains(&part.mime_type.as_str()))
    };
    let status = part(["message/delivery-status", "message/global-delivery-status"])?;
    let groups = field_groups(&status.bytes(MAX_STATUS_BYTES).0);
    let (about_mail, about_recipients) = groups.split_first()?;
    let recipients: Vec<_> = about_recipients
        .iter()
        .filter_map(|group| recipient(group))
        .take(MAX_REPORTED_RECIPIENTS)
        .collect();
    if recipients.is_empty() {
        return None;
    }
    let returned = part(["message/rfc822", "message/global"])
        .or_else(|| part(["text/rfc822-headers", "message/global-headers"]));
    Some(DeliveryReport {
        envelope_id: field(about_mail, "original-envelope-id").map(str::to_owned),
        reporting_mta: field(about_mail, "reporting-mta").map(|value| typed(value).to_owned()),
        message_id: returned.and_then(message_id),
        recipients,
    })
}

fn recipient(group: &[(String, String)]) -> Option<RecipientReport> {
    let action = field(group, "action")?.to_ascii_lowercase();
    let action = match action.split([' ', '(', ';']).next().unwrap_or_default() {
        "failed" => ReportedAction::Failed,
        "delayed" => ReportedAction::Delayed,
        "delivered" => ReportedAction::Delivered,
        "relayed" => ReportedAction::Relayed,
        "expanded" => ReportedAction::Expanded,
        _ => return None,
    };
    let address = |name| field(group, name).map(|value| address(typed(value)));
    let status = field(group, "status").and_then(|status| status.split([' ', '(']).next());
    let diagnostic = field(group, "diagnostic-code").map(typed).map(|text| {
        let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        line[..line.floor_char_boundary(MAX_DIAGNOSTIC_BYTES)].to_owned()
    });
    Some(RecipientReport {
        final_recipient: address("final-recipient").filter(|address| !address.is_empty())?,
        original_recipient: address("original-recipient").filter(|address| !address.is_empty()),
        action,
        status: status.filter(|status| !status.is_empty()).map(str::to_owned),
        diagnostic: diagnostic.filter(|text| !text.is_empty()),
    })
}

/// The value of the first field of that name.
fn field<'g>(group: &'g [(String, String)], name: &str) -> Option<&'g str> {
    let found = group.iter().find(|(field, _)| field == name)?;
    Some(found.1.trim()).filter(|value| !value.is_empty())
}

/// The value behind its type: `rfc822; ann@example.com`.
fn typed(value: &str) -> &str {
    value.split_once(';').map_or(value, |(_, value)| value).trim()
}

/// An address without angle brackets. Some servers add them.
fn address(value: &str) -> String {
    value.trim_start_matches('<').trim_end_matches('>').to_owned()
}

/// The id in the header of the returned mail.
fn message_id(returned: &MailPart<'_>) -> Option<String> {
    read_mail(&returned.bytes(MAX_STATUS_BYTES).0).message_id
}

#[cfg(test)]
mod tests;
