//! Applies delivery status notifications (RFC 3464) to the deliveries that they report on.
//!
//! A notification counts only when it returns the envelope id of a delivery, which contains a
//! token that recipients do not see. All others are ordinary mails and change nothing.

use monoco_adapters::email::dsn::{DeliveryReport, RecipientReport, ReportedAction};
use monoco_adapters::email::envelope_key::EnvelopeKey;
use monoco_core::delivery::{DeliveryOutcome, SendState};
use monoco_core::lease::LeaseProof;
use monoco_core::record::RecordId;
use monoco_core::retry::{Failure, RetryPolicy};
use monoco_store::StoreError;

use super::EmailTaskLoop;
use crate::center::lease::delivery_retry;

/// What a notification does to its delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ReportEffect {
    /// The mail will not arrive.
    Bounce(Failure),
    /// The mail has arrived, or another server has it.
    Confirm,
}

impl EmailTaskLoop {
    /// Changes the delivery of a notification that proves its envelope id.
    pub(super) async fn apply_report(&self, report: &DeliveryReport) -> Result<(), StoreError> {
        let Some(envelope_id) = &report.envelope_id else { return Ok(()) };
        let key = EnvelopeKey::new(self.store.email_secret().await?);
        let Some(delivery) = key.read(envelope_id) else {
            tracing::info!("delivery status notification with an unknown envelope id");
            return Ok(());
        };
        let Some(effect) = effect(report) else { return Ok(()) };
        match self.apply(delivery, effect).await {
            // The delivery was purged, or belongs to a store that was replaced.
            Err(StoreError::Missing { .. } | StoreError::InvalidTransition(_)) => Ok(()),
            other => other,
        }
    }

    async fn apply(&self, delivery: RecordId, effect: ReportEffect) -> Result<(), StoreError> {
        let now = self.clock.now();
        match effect {
            ReportEffect::Bounce(failure) => {
                self.store.bounce_delivery(delivery, failure, now).await?;
            }
            ReportEffect::Confirm => {
                let delivery = self.store.delivery(delivery).await?;
                if delivery.sending.state.name() != SendState::Uncertain {
                    return Ok(());
                }
                // The envelope id proves the attempt as its epoch does.
                let (epoch, holder) = (Some(delivery.sending.epoch), self.holder.clone());
                let accepted = DeliveryOutcome::Accepted { external_msg_id: None };
                let proof = LeaseProof { epoch, holder };
                let retry = delivery_retry(RetryPolicy::DELIVERY);
                self.store.report_delivery(delivery.id, accepted, proof, retry, now).await?;
            }
        }
        Ok(())
    }
}

/// A mail is sent to one recipient per transaction, so one failure is the failure of the delivery.
fn effect(report: &DeliveryReport) -> Option<ReportEffect> {
    let failed = report.recipients.iter().find(|it| it.action == ReportedAction::Failed);
    if let Some(recipient) = failed {
        return Some(ReportEffect::Bounce(bounce(report, recipient)));
    }
    let arrived = [ReportedAction::Delivered, ReportedAction::Relayed, ReportedAction::Expanded];
    let confirmed = report.recipients.iter().any(|it| arrived.contains(&it.action));
    confirmed.then_some(ReportEffect::Confirm)
}

fn bounce(report: &DeliveryReport, recipient: &RecipientReport) -> Failure {
    let server = report.reporting_mta.as_deref().unwrap_or("another server");
    let why = recipient.diagnostic.as_deref().unwrap_or("no reason given");
    let detail = format!("{server} could not deliver to {}: {why}", recipient.final_recipient);
    Failure::Permanent { detail, error_code: recipient.status.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(action: ReportedAction) -> DeliveryReport {
        let recipient = RecipientReport {
            final_recipient: "ann@example.org".to_owned(),
            original_recipient: None,
            action,
            status: Some("5.1.1".to_owned()),
            diagnostic: Some("no such user".to_owned()),
        };
        DeliveryReport {
            envelope_id: None,
            reporting_mta: Some("mx.example.org".to_owned()),
            message_id: None,
            recipients: vec![recipient],
        }
    }

    #[test]
    fn each_action_has_its_effect() {
        let detail = "mx.example.org could not deliver to ann@example.org: no such user";
        let bounce =
            Failure::Permanent { detail: detail.to_owned(), error_code: Some("5.1.1".to_owned()) };
        let of = |action| effect(&report(action));
        assert_eq!(of(ReportedAction::Failed), Some(ReportEffect::Bounce(bounce)));
        assert_eq!(of(ReportedAction::Delayed), None);
        for action in [ReportedAction::Delivered, ReportedAction::Relayed, ReportedAction::Expanded]
        {
            assert_eq!(of(action), Some(ReportEffect::Confirm));
        }
    }
}
