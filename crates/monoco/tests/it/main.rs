//! Tests of the built binary: one file per interface, and one per kind of fault.

#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod ack_checker;
mod api;
mod attacks;
mod backup;
mod beanstalkd_faults;
mod cli;
mod clock;
mod common;
mod concurrent_agents;
mod crash;
mod daemon;
mod data_loss;
mod disk_full;
mod drafts;
mod end_to_end;
mod external_workers;
mod faults;
mod files;
mod hostile;
mod kill_points;
mod letter_checker;
mod letter_kill_points;
mod letter_mime;
mod letters;
mod mail_checker;
mod mailbox_list;
mod mailbox_run;
mod mailbox_send;
mod mails;
mod mime;
mod operations;
mod pipeline;
mod pipeline_harness;
mod power_cuts;
mod records;
mod reference_sdks;
mod replays;
mod rspamd;
mod terminal;
mod tidy;
mod tour;
mod webhook_peer;
mod webhooks;
mod worker_answers;
