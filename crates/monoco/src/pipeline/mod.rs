//! The post office: letters go through a chain of workers, in both directions.
//!
//! # Reading order
//!
//! * [`config`]: which chains there are, and what each worker is to do.
//! * [`pipeline`]: runs all of it.
//! * [`doorman`]: takes letters in.
//! * [`dispatcher`]: hands each letter to the next worker that has not had it.
//! * [`workers`]: the workers of our own, which need nobody else.
//! * [`desks`]: the workers outside: commands, HTTP, beanstalkd tubes, rspamd.
//! * [`queue`]: what wakes the dispatcher: the store, or a beanstalkd.
//! * [`beanstalkd`]: our client of it.
//! * [`figures`]: what is counted.
//! * [`sendmail`]: a mail as it is becomes a letter.
//! * [`letter_pages`]: looks at many letters, a few at a time.
//! * [`replay`]: how letters would fare in the chains as they are now.

pub mod beanstalkd;
pub mod config;
pub mod dispatcher;
pub mod doorman;
pub mod external;
pub mod letter_pages;
pub mod metrics;
pub mod pipeline;
pub mod queue;
pub mod replay;
pub mod sendmail;
pub mod workers;
