//! SQLite with one table and group commit: the basis of the store of Monoco, without its
//! features.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Statement};
use tempfile::TempDir;

use crate::common::Result;
use crate::contender::{Call, Peer};
use crate::payload::{self, Payload};

pub const NAME: &str = "sqlite";

/// Maximum number of jobs per commit; more than there are callers.
const BATCH: usize = 1024;

const CHECKPOINT_EVERY: Duration = Duration::from_millis(100);

/// Length of the log in pages from which writers wait until it restarts.
const LONG_LOG: i64 = 4_096;

const SETTINGS: &str = "
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL;
    PRAGMA wal_autocheckpoint = 0;
    PRAGMA busy_timeout = 30000;
";

const SCHEMA: &str = "
    CREATE TABLE messages (
        id    INTEGER PRIMARY KEY,
        state INTEGER NOT NULL,    -- 0 waiting, 1 taken, 2 finished
        body  BLOB    NOT NULL
    ) STRICT;
    CREATE INDEX waiting ON messages (id) WHERE state = 0;
";

const PUT: &str = "INSERT INTO messages (state, body) VALUES (0, ?1)";

const TAKE: &str = "
    UPDATE messages
       SET state = 1
     WHERE id = (SELECT id FROM messages WHERE state = 0 ORDER BY id LIMIT 1)
    RETURNING id, body
";

const FINISH: &str = "UPDATE messages SET state = 2 WHERE id = ?1 AND state = 1";

// A batch of rows from a counter, each with its own body.
const FILL: &str = "
    WITH RECURSIVE counter (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counter WHERE n < ?1)
    INSERT INTO messages (state, body) SELECT 0, randomblob(?2) FROM counter
";

pub struct Sqlite {
    pub below: PathBuf,
}

impl Peer for Sqlite {
    type Queue = Database;

    fn version(&self) -> String {
        format!("SQLite {}", rusqlite::version())
    }

    fn start(&self) -> Result<Database> {
        Database::create(&self.below)
    }

    fn fill(&self, database: Database, messages: u64) -> Result<Database> {
        database.fill(messages)?;
        Ok(database)
    }

    fn producer<'q>(&'q self, database: &'q Database, _: usize) -> Result<Call<'q>> {
        let (mut client, mut payload) = (database.client()?, Payload::new());
        Ok(Box::new(move || client.call(Request::Put(payload.next().to_vec())).map(|_| 1)))
    }

    fn taker<'q>(&'q self, database: &'q Database, _: usize) -> Result<Call<'q>> {
        let mut client = database.client()?;
        Ok(Box::new(move || {
            let id = client.call(Request::Take)?;
            client.call(Request::Finish(id)).map(|_| 1)
        }))
    }
}

/// A request to the writer thread. The reply is sent after the commit.
enum Request {
    Put(Vec<u8>),
    Take,
    Finish(i64),
}

/// The id of the changed row, or an error message.
type Reply = std::result::Result<i64, String>;

struct Job {
    request: Request,
    reply: SyncSender<Reply>,
}

/// An open database: a thread that writes and a thread that checkpoints.
pub struct Database {
    // In this order: the threads end when their senders are dropped, and are joined before
    // the files are removed.
    jobs: Option<Sender<Job>>,
    stop_checkpoints: Option<Sender<()>>,
    threads: Vec<JoinHandle<()>>,
    data: TempDir,
}

impl Database {
    fn create(below: &Path) -> Result<Self> {
        let data = TempDir::new_in(below)?;
        let writer = open(data.path())?;
        writer.execute_batch(SCHEMA)?;
        let checkpointer = open(data.path())?;
        let (jobs, todo) = channel();
        let (stop_checkpoints, stopped) = channel();
        let threads = vec![
            thread::spawn(move || write(&writer, &todo)),
            thread::spawn(move || checkpoint(&checkpointer, &stopped)),
        ];
        Ok(Self { jobs: Some(jobs), stop_checkpoints: Some(stop_checkpoints), threads, data })
    }

    fn client(&self) -> Result<Client> {
        let jobs = self.jobs.clone().ok_or("the database is closed")?;
        let (reply, replies) = sync_channel(1);
        Ok(Client { jobs, reply, replies })
    }

    /// Adds messages in transactions of 10,000.
    fn fill(&self, messages: u64) -> Result<()> {
        let filler = open(self.data.path())?;
        let mut left = messages;
        while left > 0 {
            let batch = left.min(10_000);
            filler.execute(FILL, (i64::try_from(batch)?, i64::try_from(payload::SIZE)?))?;
            left -= batch;
        }
        // Not TRUNCATE: a log that has to grow again is slow to sync, and a small backlog
        // would be consumed before it has grown.
        let busy = |row: &rusqlite::Row<'_>| row.get::<_, bool>(0);
        while filler.query_row("PRAGMA wal_checkpoint(RESTART)", [], busy)? {
            thread::sleep(CHECKPOINT_EVERY);
        }
        Ok(())
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        self.jobs = None;
        self.stop_checkpoints = None;
        for thread in self.threads.drain(..) {
            // A writer that panicked has already failed its callers.
            let _ = thread.join();
        }
    }
}

/// Connection of one caller to the writer thread.
struct Client {
    jobs: Sender<Job>,
    reply: SyncSender<Reply>,
    replies: Receiver<Reply>,
}

impl Client {
    fn call(&mut self, request: Request) -> Result<i64> {
        self.jobs
            .send(Job { request, reply: self.reply.clone() })
            .map_err(|_| "the writer is gone")?;
        Ok(self.replies.recv_timeout(Duration::from_secs(30))??)
    }
}

fn open(data: &Path) -> Result<Connection> {
    let connection = Connection::open(data.join("queue.db"))?;
    connection.execute_batch(SETTINGS)?;
    Ok(connection)
}

/// Commits all waiting jobs in a loop until all senders are dropped.
fn write(connection: &Connection, todo: &Receiver<Job>) {
    let mut statements = Statements::prepare(connection).expect("the schema has been created");
    let mut done = Vec::with_capacity(BATCH);
    while let Ok(first) = todo.recv() {
        let committed = connection.execute_batch("BEGIN IMMEDIATE").and_then(|()| {
            for job in std::iter::once(first).chain(todo.try_iter()).take(BATCH) {
                let reply = statements.run(&job.request).map_err(|err| err.to_string());
                done.push((job.reply, reply));
            }
            connection.execute_batch("COMMIT")
        });
        for (caller, reply) in done.drain(..) {
            // A caller that has gone needs no reply.
            let _ = caller.send(match &committed {
                Ok(()) => reply,
                Err(err) => Err(format!("not committed: {err}")),
            });
        }
    }
}

/// Keeps the log short from its own connection, without blocking the writer.
fn checkpoint(connection: &Connection, stopped: &Receiver<()>) {
    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(CHECKPOINT_EVERY) {
        let log = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get(1));
        if log.is_ok_and(|pages: i64| pages > LONG_LOG) {
            // Busy is no error: the next round retries.
            let _ = connection.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(()));
        }
    }
}

struct Statements<'c> {
    put: Statement<'c>,
    take: Statement<'c>,
    finish: Statement<'c>,
}

impl<'c> Statements<'c> {
    fn prepare(connection: &'c Connection) -> rusqlite::Result<Self> {
        Ok(Self {
            put: connection.prepare(PUT)?,
            take: connection.prepare(TAKE)?,
            finish: connection.prepare(FINISH)?,
        })
    }

    fn run(&mut self, request: &Request) -> Result<i64> {
        match request {
            Request::Put(body) => Ok(self.put.insert([body])?),
            Request::Take => {
                let taken: Option<(i64, Vec<u8>)> =
                    self.take.query_row([], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
                match taken {
                    Some((id, body)) if body.len() == payload::SIZE => Ok(id),
                    Some((_, body)) => Err(format!("a body of {} B", body.len()).into()),
                    None => Err("no message is waiting".into()),
                }
            }
            Request::Finish(id) => match self.finish.execute([id])? {
                1 => Ok(*id),
                _ => Err(format!("message {id} was not taken").into()),
            },
        }
    }
}
