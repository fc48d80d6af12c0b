//! Tries one worker of the config with one letter, without a courier and without its store.

use std::time::Duration;

use monoco_core::letter::{
    InvalidWorkerName, Letter, LetterId, WorkerName, WorkerRequest, WorkerResult, WorkerStep,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::beanstalkd::{BeanstalkdClient, BeanstalkdError, JobConsumer, PutOptions};
use super::config::PipelineConfig;
use super::external::request::RequestTransport;
use super::external::tube::{TubeTransport, answered_letter, split_answers};
use super::external::worker::parse_answer;
use super::external::{Attempt, AttemptResult, ExternalWorkerConfig, WorkerTransport};
use super::queue::JOB_PRIORITY;
use super::workers::{Worker, WorkerAction, downcast};
use crate::clock::wall_now;

/// How long an answer to another letter is not offered again.
const RELEASE_DELAY: Duration = Duration::from_secs(1);

/// Maximum number of jobs that are reserved together.
const MAX_JOBS: usize = 16;

/// The nonce of the only attempt.
const NONCE: &str = "try";

/// What a worker did with a letter.
#[derive(Debug)]
pub struct WorkerTrial {
    pub kind: &'static str,
    pub outcome: TrialOutcome,
    /// End of what a command wrote to stderr.
    pub stderr: String,
}

#[derive(Debug)]
pub enum TrialOutcome {
    Decided(WorkerResult),
    /// What the pipeline would do, because the worker itself decides nothing.
    Action(&'static str),
    /// The worker was reached and failed.
    Failed(String),
    /// The worker was not reached.
    Down(String),
}

/// Why a worker cannot be tried.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    #[error(transparent)]
    InvalidName(#[from] InvalidWorkerName),
    #[error("there is no worker {name}; configured workers: {known}")]
    UnknownWorker { name: WorkerName, known: String },
    #[error("the running courier reads the answers of worker {0} from the tube")]
    CourierReadsAnswers(WorkerName),
}

/// Gives a letter to a worker. `courier_runs` tells whether a courier with this config runs.
///
/// # Errors
///
/// [`TrialError`] when there is no such worker, or when a courier would take its answer.
pub async fn try_worker(
    config: &PipelineConfig,
    name: &str,
    letter: &Letter,
    courier_runs: bool,
) -> Result<WorkerTrial, TrialError> {
    let name: WorkerName = name.parse()?;
    let Some(worker) = config.workers.get(&name) else {
        let known: Vec<_> = config.workers.keys().map(WorkerName::as_str).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(TrialError::UnknownWorker { name, known });
    };
    let attempt = match worker.work(letter, wall_now()) {
        WorkerStep::Decided(result) => return Ok(decided(&**worker, result)),
        WorkerStep::Needs(WorkerAction::HandOver) => {
            let Some(external) = downcast::<ExternalWorkerConfig>(&**worker) else {
                return Ok(action(&**worker, "hands the letter over"));
            };
            let mark = getrandom::u32().unwrap_or_default();
            let request = WorkerRequest {
                id: LetterId { seq: 1, mark },
                worker: &name,
                nonce: NONCE,
                attempt: 1,
                letter,
                may_readdress: external.readdress,
            };
            let attempt = match &external.transport {
                WorkerTransport::Tube(_) if courier_runs => {
                    return Err(TrialError::CourierReadsAnswers(name));
                }
                WorkerTransport::Tube(tube) => {
                    let stop = CancellationToken::new();
                    let result = try_tube(tube, &request, external.timeout, &stop).await;
                    stop.cancel();
                    result.unwrap_or_else(|error| AttemptResult::Down(error.to_string())).into()
                }
                _ => {
                    let transport = RequestTransport::new(&name, external.clone());
                    transport.attempt(&request, &[], wall_now()).await
                }
            };
            let Attempt { result, stderr } = attempt;
            let outcome = match result {
                AttemptResult::Answered(bytes) => match parse_answer(&request, &bytes) {
                    Ok(result) => TrialOutcome::Decided(result),
                    Err(why) => TrialOutcome::Failed(why),
                },
                AttemptResult::Decided(result) => TrialOutcome::Decided(result),
                AttemptResult::Failed(why) => TrialOutcome::Failed(why),
                AttemptResult::Down(why) => TrialOutcome::Down(why),
            };
            return Ok(WorkerTrial { kind: worker.kind(), outcome, stderr });
        }
        WorkerStep::Needs(WorkerAction::CheckContacts) => "trashes letters of blocked contacts",
        WorkerStep::Needs(WorkerAction::ReserveSlot(_)) => "holds letters above the limit",
        WorkerStep::Needs(WorkerAction::JoinWindow(_)) => "holds letters and merges them",
        WorkerStep::Needs(WorkerAction::Send) => "sends the letter",
        WorkerStep::Needs(WorkerAction::Deliver) => "delivers the letter",
    };
    Ok(action(&**worker, attempt))
}

fn decided(worker: &dyn Worker, result: WorkerResult) -> WorkerTrial {
    let outcome = TrialOutcome::Decided(result);
    WorkerTrial { kind: worker.kind(), outcome, stderr: String::new() }
}

fn action(worker: &dyn Worker, action: &'static str) -> WorkerTrial {
    let outcome = TrialOutcome::Action(action);
    WorkerTrial { kind: worker.kind(), outcome, stderr: String::new() }
}

/// Puts a letter into the tube of a worker and waits for its answer. Answers to other letters
/// are released.
async fn try_tube(
    tube: &TubeTransport,
    request: &WorkerRequest<'_>,
    timeout: Duration,
    stop: &CancellationToken,
) -> Result<AttemptResult, BeanstalkdError> {
    let tasks = TaskTracker::new();
    let client = BeanstalkdClient::new(tube.server.clone(), &tasks, stop.clone());
    let results = vec![tube.results.clone()];
    let mut consumer = JobConsumer::new(tube.server.clone(), results, &tasks, stop.clone());
    let body = request.to_json(&[]).to_string().into_bytes();
    let options = PutOptions { body, priority: JOB_PRIORITY, delay: Duration::ZERO, ttr: timeout };
    let job = client.put(&tube.tube, options).await?;
    let deadline = Instant::now() + timeout;
    while Instant::now() < deadline {
        let wait = deadline.saturating_duration_since(Instant::now());
        for answers in consumer.reserve_some(MAX_JOBS, wait).await? {
            let all = split_answers(&answers.body);
            let is_own = |answer: &&&[u8]| {
                answered_letter(answer).is_some_and(|letter| letter.id == request.id)
            };
            let own = all.iter().find(is_own).map(|answer| answer.to_vec());
            // A job that has answers to other letters as well is left for the courier.
            match &own {
                Some(_) if all.len() == 1 => consumer.delete(&[answers.id]).await?,
                _ => consumer.release(&[answers.id], JOB_PRIORITY, RELEASE_DELAY).await?,
            }
            if let Some(own) = own {
                return Ok(AttemptResult::Answered(own));
            }
        }
    }
    client.delete(job).await?;
    let seconds = timeout.as_secs();
    Ok(AttemptResult::Failed(format!("no answer in {} within {seconds} s", tube.results)))
}
