//! Differences between the clocks of machines that share a store.
//!
//! Couriers follow the clock of the database server, so that they agree on when a lease expires. A
//! small difference to the clock of their own machine is harmless; a large one is a mistake of an
//! operator, because signatures and times of providers are checked by that clock.

/// Largest difference that is not reported, in milliseconds.
pub const MAX_CLOCK_SKEW_MS: i64 = 10_000;

/// Names a clock that differs too much from the time of the couriers, with the next step. `machine_ms`
/// and `server_ms` are how far the clocks of this machine and of the database server are ahead.
pub fn clock_problem(machine_ms: i64, server_ms: i64) -> Option<String> {
    let next = "synchronize the clocks of all machines, for example with chrony";
    let differs = |ms: i64| {
        let direction = if ms > 0 { "ahead of" } else { "behind" };
        let is_large = ms.saturating_abs() > MAX_CLOCK_SKEW_MS;
        is_large.then(|| {
            format!("{} s {direction} the time of the couriers", ms.saturating_abs() / 1000)
        })
    };
    if let Some(differs) = differs(server_ms) {
        return Some(format!(
            "the clock of the database server is {differs}, which follow it by 10 ms per second; {next}"
        ));
    }
    let differs = differs(machine_ms)?;
    Some(format!(
        "the clock of this machine is {differs}, which follow the database server; {next}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_difference_is_named_with_its_machine_and_direction() {
        for (machine, server, expected) in [
            (0, 0, None),
            (10_000, -10_000, None),
            (120_500, 0, Some("this machine is 120 s ahead of")),
            (-11_000, 0, Some("this machine is 11 s behind")),
            (120_000, 30_000, Some("the database server is 30 s ahead of")),
            (0, i64::MIN, Some("the database server is")),
        ] {
            let found = clock_problem(machine, server);
            match expected {
                None => assert_eq!(found, None),
                Some(part) => assert!(found.is_some_and(|found| found.contains(part)), "{part}"),
            }
        }
    }
}
