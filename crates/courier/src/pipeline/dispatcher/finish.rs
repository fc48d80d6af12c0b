//! The ends of a chain: what a letter becomes when it is sent or delivered.

use monoco_core::inbound::ValidInboundMessage;
use monoco_core::letter::{
    FinishContext, FinishError, INLINE_MAIL, Letter, apply_mail_to_inbound, apply_to_inbound,
    apply_to_message, letter_to_message,
};
use monoco_core::object::MsgObject;
use monoco_store::{
    DispatchRequest, LetterSource, NextAction, SendRequest, StoreInboundRequest, StoreResult,
};

use super::{LetterDispatcher, LetterInProgress, tunnel_of};
use crate::pipeline::config::PipelineConfig;

impl LetterDispatcher {
    /// Returns the action of `send`: the message that the letter becomes is sent.
    pub(super) async fn send(
        &self,
        config: &PipelineConfig,
        letter: &LetterInProgress,
    ) -> StoreResult<NextAction> {
        let (row, current) = (&letter.row, letter.run.letter());
        let (message, not_before, origin) = match &row.source {
            LetterSource::Submitted { origin, .. } => {
                (self.submitted_message(config, letter).await?, None, origin)
            }
            LetterSource::Send(send) => {
                (apply_to_message(&send.msg, current, row.id), send.not_before, &send.origin)
            }
            LetterSource::Inbound(_) | LetterSource::Dispatch(_) => return Ok(wrong_direction()),
        };
        Ok(match message {
            Ok(msg) => {
                let origin = origin.clone();
                NextAction::Send(Box::new(SendRequest { msg, key: None, not_before, origin }))
            }
            Err(error) => mark_dead(&error),
        })
    }

    /// Converts a submitted letter to a message. A mail larger than 256 KiB is stored as a
    /// blob beside it.
    async fn submitted_message(
        &self,
        config: &PipelineConfig,
        letter: &LetterInProgress,
    ) -> StoreResult<Result<MsgObject, FinishError>> {
        let (row, current) = (&letter.row, letter.run.letter());
        let subject = match current.is_mail() && current.extra("subject").is_none() {
            true => monoco_mime::subject(&current.bytes()),
            false => None,
        };
        let mut blob = None;
        // The bytes are never longer than the text, so a short text needs no decoding.
        if current.is_mail() && current.data.len() > INLINE_MAIL {
            let bytes = current.bytes();
            let size = bytes.len() as u64;
            if bytes.len() > INLINE_MAIL {
                blob = Some((self.store.put_blob(bytes.into_owned()).await?, size));
            }
        }
        let context = FinishContext {
            id: row.id,
            at: row.created_at,
            tunnel: tunnel_of(row, config),
            bytes: blob,
            mail_subject: subject.as_deref(),
        };
        Ok(letter_to_message(current, context))
    }

    /// Returns the action of `deliver`: the message is delivered with the changes of the
    /// workers.
    pub(super) fn deliver(&self, letter: &LetterInProgress) -> NextAction {
        let (row, current) = (&letter.row, letter.run.letter());
        match &row.source {
            LetterSource::Inbound(request) => match inbound_message(request, current) {
                Ok(message) => NextAction::Deliver(Box::new(StoreInboundRequest {
                    tunnel: request.tunnel.clone(),
                    provider: request.provider.clone(),
                    message,
                    attachments: Vec::new(),
                    debounce: request.debounce,
                    mail: None,
                })),
                Err(error) => mark_dead(&error),
            },
            LetterSource::Dispatch(request) => {
                match apply_to_message(&request.msg, current, row.id) {
                    Ok(msg) => {
                        let request = DispatchRequest { msg, ..request.clone() };
                        NextAction::Dispatch(Box::new(request))
                    }
                    Err(error) => mark_dead(&error),
                }
            }
            LetterSource::Submitted { .. } | LetterSource::Send(_) => wrong_direction(),
        }
    }
}

/// Returns the inbound message with the changes of the workers.
fn inbound_message(
    request: &StoreInboundRequest,
    letter: &Letter,
) -> Result<ValidInboundMessage, FinishError> {
    match &request.mail {
        Some(mail) if letter.is_mail() => {
            let subject = monoco_mime::subject(&letter.bytes());
            let changed =
                subject.filter(|subject| monoco_mime::subject(mail).as_ref() != Some(subject));
            apply_mail_to_inbound(&request.message, letter, changed)
        }
        _ => apply_to_inbound(&request.message, letter),
    }
}

fn mark_dead(error: &FinishError) -> NextAction {
    NextAction::MarkDead { why: error.to_string() }
}

fn wrong_direction() -> NextAction {
    let why = "the chain ends with a worker of the other direction";
    NextAction::MarkDead { why: why.to_owned() }
}
