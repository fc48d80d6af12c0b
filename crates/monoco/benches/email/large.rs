//! One mail of 100 MB: time and memory until it is a Mail with its attachment.

use crate::account::AccountCourier;
use crate::common::Result;
use crate::dovecot::Dovecot;
use crate::mails::large_mail;
use crate::plan::Plan;
use crate::report::{Report, mib, seconds};

const USER: &str = "large";

/// Measures the courier alone: the peers stream mails into files and decode nothing.
pub fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    let dovecot = Dovecot::start(&plan.dir)?;
    let bytes = dovecot.fill(&[(USER, 1)], std::iter::once(large_mail(plan.large_mail)))?;
    rustix::fs::sync();
    let mut courier = AccountCourier::start(&plan.dir, &dovecot, USER, true)?;
    let fetch = courier.until_written(1)?;
    report.heading(&format!("one mail of {} MB", bytes / 1_000_000), &["target", "monoco"]);
    let took = seconds(fetch.took.as_secs_f64());
    report.row("until the Mail file is written, s", "", std::iter::once(took));
    report.row("peak memory, MiB", "under 150", std::iter::once(mib(fetch.peak)));
    Ok(())
}
