//! The command line: what the model takes as given.

use crate::random::Zipf;
use crate::service::{MEASURED, MeasuredRates, ServiceTimes};
use crate::simulation::Scenario;

/// Settings of a run. All are numbers, so that one table describes them.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    pub seed: f64,
    pub messages: f64,
    pub couriers: f64,
    /// Measured rates that replace those of the table; 0 keeps them.
    pub dispatch_1: f64,
    pub dispatch_64: f64,
    pub take_finish_8: f64,
    pub standby_ms: f64,
    pub speed: f64,
    pub round_trip_ms: f64,
    pub sends: f64,
    pub groups: f64,
    pub group_exponent: f64,
    pub largest_group: f64,
    pub owners_per_hub: f64,
    pub owner_exponent: f64,
    pub local: f64,
    pub message_bytes: f64,
    pub days: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 1.0,
            messages: 100_000.0,
            couriers: 1.0,
            dispatch_1: 0.0,
            dispatch_64: 0.0,
            take_finish_8: 0.0,
            standby_ms: 0.0,
            speed: 1.0,
            round_trip_ms: 2.0,
            sends: 4.0,
            groups: 0.2,
            group_exponent: 2.0,
            largest_group: 1_000.0,
            owners_per_hub: 100_000.0,
            owner_exponent: 0.6,
            local: 0.0,
            message_bytes: 2_500.0,
            days: 60.0,
        }
    }
}

/// One flag with its bounds.
struct Flag {
    name: &'static str,
    about: &'static str,
    least: f64,
    most: f64,
    whole: bool,
    field: fn(&mut Options) -> &mut f64,
}

const FLAGS: [Flag; 18] = [
    flag("--seed", "seed of the random numbers", 0.0, 1e15, true, |o| &mut o.seed),
    flag("--messages", "messages per row; at large rates 1 s of them", 1e3, 1e8, true, |o| {
        &mut o.messages
    }),
    flag("--couriers", "couriers per hub, 1, 2 or 4", 1.0, 4.0, true, |o| &mut o.couriers),
    flag("--dispatch-1", "dispatches/s of 1 producer; 0: as measured", 0.0, 1e7, false, |o| {
        &mut o.dispatch_1
    }),
    flag("--dispatch-64", "dispatches/s of 64 producers; 0: as measured", 0.0, 1e7, false, |o| {
        &mut o.dispatch_64
    }),
    flag("--take-finish-8", "take + finish/s, 8 takers; 0: as measured", 0.0, 1e7, false, |o| {
        &mut o.take_finish_8
    }),
    flag("--standby-ms", "wait for a standby per commit, ms", 0.0, 1e4, false, |o| {
        &mut o.standby_ms
    }),
    flag("--speed", "speed of a hub, in measured machines", 0.01, 1e4, false, |o| &mut o.speed),
    flag("--round-trip-ms", "network between hubs, ms", 0.0, 1e4, false, |o| &mut o.round_trip_ms),
    flag("--sends", "parallel sends from one hub to another", 1.0, 1e4, true, |o| &mut o.sends),
    flag("--groups", "share of messages to groups", 0.0, 1.0, false, |o| &mut o.groups),
    flag("--group-exponent", "Zipf exponent of group sizes", 0.0, 4.0, false, |o| {
        &mut o.group_exponent
    }),
    flag("--largest-group", "subscribers of the largest group", 1.0, 1e5, true, |o| {
        &mut o.largest_group
    }),
    flag("--owners-per-hub", "owners per hub", 1.0, 1e9, true, |o| &mut o.owners_per_hub),
    flag("--owner-exponent", "Zipf exponent of recipients", 0.01, 2.0, false, |o| {
        &mut o.owner_exponent
    }),
    flag("--local", "share of direct messages placed on one hub", 0.0, 1.0, false, |o| {
        &mut o.local
    }),
    flag("--message-bytes", "bytes on disk per inbox", 1.0, 1e9, true, |o| &mut o.message_bytes),
    flag("--days", "days that messages are kept", 1.0, 36_500.0, true, |o| &mut o.days),
];

const fn flag(
    name: &'static str,
    about: &'static str,
    least: f64,
    most: f64,
    whole: bool,
    field: fn(&mut Options) -> &mut f64,
) -> Flag {
    Flag { name, about, least, most, whole, field }
}

#[derive(Debug, PartialEq)]
pub enum Action {
    Run(Box<Options>),
    Help,
    /// Started by `cargo test` without `--bench`.
    Nothing,
}

/// Parses the arguments. The error is a message for the user.
pub fn parse(mut args: impl Iterator<Item = String>) -> Result<Action, String> {
    let (mut benching, mut options) = (false, Options::default());
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--bench" => benching = true,
            "--quick" => options.messages = 20_000.0,
            "--only" => match args.next().as_deref() {
                Some("hubs") => {}
                other => {
                    return Err(format!("--only {}: expected hubs", other.unwrap_or_default()));
                }
            },
            "--help" | "-h" => return Ok(Action::Help),
            name => {
                let Some(flag) = FLAGS.iter().find(|flag| flag.name == name) else {
                    return Err(format!("unknown argument {name:?}; see --help"));
                };
                *(flag.field)(&mut options) = flag.parse(args.next())?;
            }
        }
    }
    if options.couriers == 3.0 {
        return Err("--couriers 3: expected 1, 2 or 4, the numbers that were measured".to_owned());
    }
    Ok(if benching { Action::Run(Box::new(options)) } else { Action::Nothing })
}

impl Flag {
    fn parse(&self, value: Option<String>) -> Result<f64, String> {
        let (name, least, most) = (self.name, self.least, self.most);
        let kind = if self.whole { "a whole number" } else { "a number" };
        let expected = format!("expected {kind} from {least} to {most}");
        let value = value.ok_or_else(|| format!("{name} needs a value; {expected}"))?;
        let number: f64 =
            value.replace(',', "").parse().map_err(|_| format!("{name} {value:?}: {expected}"))?;
        if !(least..=most).contains(&number) || self.whole && number.fract() != 0.0 {
            return Err(format!("{name} {value}: {expected}"));
        }
        Ok(number)
    }
}

pub fn usage() -> String {
    let mut defaults = Options::default();
    let mut text = String::from(
        "Usage: ./bench --only hubs [--quick] [FLAG NUMBER]...\n\n\
         Simulate several hubs on measured service times. The same flags and seed print the same \
         tables.\n\n",
    );
    text += "  --quick                  simulate 20,000 messages per row\n";
    for flag in &FLAGS {
        let default = *(flag.field)(&mut defaults);
        text += &format!("  {:<16} NUMBER  {} [default: {default}]\n", flag.name, flag.about);
    }
    text
}

impl Options {
    /// The measured rates, with those of the command line in their place.
    pub fn rates(&self) -> MeasuredRates {
        let measured = MEASURED.iter().find(|rates| f64::from(rates.couriers) == self.couriers);
        let mut rates = *measured.unwrap_or(&MEASURED[0]);
        for (rate, given) in [
            (&mut rates.dispatch_1, self.dispatch_1),
            (&mut rates.dispatch_64, self.dispatch_64),
            (&mut rates.take_finish_8, self.take_finish_8),
        ] {
            if given > 0.0 {
                *rate = given;
            }
        }
        rates
    }

    /// Service times of a hub.
    ///
    /// # Errors
    ///
    /// When the rates contradict the model.
    pub fn times(&self) -> Result<ServiceTimes, String> {
        let times = ServiceTimes::from_rates(&self.rates())?;
        Ok(times.adjusted(self.standby_ms / 1e3, self.speed))
    }

    pub fn owners(&self, hubs: u32) -> Zipf {
        let count = self.owners_per_hub * f64::from(hubs);
        Zipf { count, exponent: self.owner_exponent }
    }

    /// A scenario with at least `messages`, and with those of 1 s at large rates, up to five times as
    /// many: a shorter time would end before the latencies of its messages.
    pub fn scenario(&self, times: ServiceTimes, hubs: u32, rate: f64) -> Scenario {
        Scenario {
            seed: self.seed as u64,
            hubs,
            rate,
            messages: self.messages.max(rate.min(5.0 * self.messages)) as u32,
            times,
            round_trip: self.round_trip_ms / 1e3,
            sends: self.sends as u32,
            group_share: self.groups,
            group_sizes: Zipf { count: self.largest_group, exponent: self.group_exponent },
            owners: self.owners(hubs),
            local_share: self.local,
            outage: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &str) -> Result<Action, String> {
        parse(args.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn flags_set_their_fields() {
        let Ok(Action::Run(options)) = parsed(
            "--bench --only hubs --seed 7 --rtt 2".replace("--rtt", "--round-trip-ms").as_str(),
        ) else {
            panic!("not parsed");
        };
        assert_eq!(*options, Options { seed: 7.0, ..Options::default() });
        let Ok(Action::Run(quick)) = parsed("--bench --quick --dispatch-64 22,244") else {
            panic!("not parsed");
        };
        assert_eq!((quick.messages, quick.rates().dispatch_64), (20_000.0, 22_244.0));
        assert_eq!(parsed("--quick"), Ok(Action::Nothing));
        assert_eq!(parsed("--bench -h"), Ok(Action::Help));
    }

    #[test]
    fn bad_flags_are_errors_that_say_what_is_expected() {
        for (args, error) in [
            ("--hubs 3", "unknown argument \"--hubs\"; see --help"),
            ("--seed", "--seed needs a value; expected a whole number from 0 to 1000000000000000"),
            ("--groups two", "--groups \"two\": expected a number from 0 to 1"),
            ("--groups 1.5", "--groups 1.5: expected a number from 0 to 1"),
            ("--groups NaN", "--groups NaN: expected a number from 0 to 1"),
            ("--sends 0.5", "--sends 0.5: expected a whole number from 1 to 10000"),
            ("--couriers 3", "--couriers 3: expected 1, 2 or 4, the numbers that were measured"),
            ("--only pages", "--only pages: expected hubs"),
        ] {
            assert_eq!(parsed(args), Err(error.to_owned()), "{args}");
        }
    }

    #[test]
    fn usage_names_every_flag_with_its_default() {
        let usage = usage();
        for flag in &FLAGS {
            assert!(usage.contains(flag.name), "{}", flag.name);
        }
        assert!(usage.contains("--seed           NUMBER  seed of the random numbers [default: 1]"));
    }
}
