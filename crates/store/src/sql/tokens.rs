//! Tokens of agents, and which Mails agents have read.

use async_trait::async_trait;
use monoco_core::claim::Workspace;
use monoco_core::event::EventKind;
use monoco_core::mail::{MailId, Trust};
use monoco_core::object::ObjId;
use monoco_core::time::Timestamp;
use monoco_core::token::{
    AgentName, AgentRead, AgentToken, NewAgentToken, TokenHash, is_use_stored,
};
use serde_json::json;

use super::db::{Db, Row, RowResult, params};
use super::events::{self, EventSubject};
use super::mails::StoredMail;
use super::rows::{self, parsed};
use super::writer::Tx;
use super::{SqlStore, mails, objects};
use crate::{StoreError, StoreResult, TokenStore};

const COLUMNS: &str = "name, scopes, workspace, did, created_at, last_used_at, revoked_at";

const PUT: &str = "
    INSERT INTO agent_tokens (name, secret, scopes, workspace, did, created_at)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6)
        ON CONFLICT (name) DO UPDATE
       SET secret = excluded.secret, scopes = excluded.scopes, workspace = excluded.workspace,
           did = excluded.did, created_at = excluded.created_at, last_used_at = NULL,
           revoked_at = NULL
";

const INSERT_READ: &str = "
    INSERT INTO agent_reads (agent, mail, at, trust, tunnel, session, answer_to)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
";

const UPDATE_READ: &str = "UPDATE agent_reads SET at = ?3 WHERE agent = ?1 AND mail = ?2";

const READS: &str = "
    SELECT m.uid, m.provider, r.tunnel, r.session, r.answer_to, r.trust, r.at
      FROM agent_reads r
      JOIN mails m ON m.seq = r.mail
     WHERE r.agent = ?1 AND r.at >= ?2
     ORDER BY r.at DESC, r.mail DESC
";

fn read(row: &Row<'_>) -> RowResult<AgentToken> {
    let workspace: String = row.get(2)?;
    let time = |column| row.get::<Option<i64>>(column).map(|at| at.map(Timestamp::from_ms));
    Ok(AgentToken {
        name: parsed(row, 0)?,
        scopes: parsed(row, 1)?,
        workspace: Workspace::new(workspace).map_err(|_| rows::damaged(2, "invalid workspace"))?,
        did: parsed(row, 3)?,
        created_at: Timestamp::from_ms(row.get(4)?),
        last_used_at: time(5)?,
        revoked_at: time(6)?,
    })
}

fn read_mail_read(row: &Row<'_>) -> RowResult<AgentRead> {
    let (uid, provider): (String, String) = (row.get(0)?, row.get(1)?);
    let id: Result<MailId, _> = format!("{provider}_{uid}").parse();
    let trust: String = row.get(5)?;
    Ok(AgentRead {
        mail: id.map_err(|_| rows::damaged(0, "invalid Mail id"))?,
        tunnel: parsed(row, 2)?,
        session: row.get(3)?,
        answer_to: parsed(row, 4)?,
        trust: Trust::parse(&trust).ok_or_else(|| rows::damaged(5, "unknown trust"))?,
        at: Timestamp::from_ms(row.get(6)?),
    })
}

fn find(db: &Db, name: &AgentName) -> StoreResult<Option<AgentToken>> {
    let sql = format!("SELECT {COLUMNS} FROM agent_tokens WHERE name = ?1");
    rows::optional(db, &sql, [name.as_str()], read)
}

fn add(
    tx: &mut Tx<'_>,
    token: &NewAgentToken,
    secret: TokenHash,
    now: Timestamp,
) -> StoreResult<AgentToken> {
    let NewAgentToken { name, scopes, workspace, did } = token;
    if find(tx.db, name)?.is_some_and(|before| before.revoked_at.is_none()) {
        return Err(StoreError::Exists { what: "token", key: name.to_string() });
    }
    let (scopes_text, workspace) = (scopes.to_string(), workspace.as_str());
    let row = params![name.as_str(), secret.0, scopes_text, workspace, did.as_str(), now.ms()];
    rows::execute(tx.db, PUT, row)?;
    let detail = json!({"token": name, "scopes": scopes.names(), "workspace": workspace,
                        "did": did, "change": "added"});
    events::append(tx, EventKind::Changed, EventSubject::default(), &detail, now)?;
    existing(tx.db, name)
}

fn existing(db: &Db, name: &AgentName) -> StoreResult<AgentToken> {
    let missing = || StoreError::Missing { what: "token", key: name.to_string() };
    find(db, name)?.ok_or_else(missing)
}

fn revoke(tx: &mut Tx<'_>, name: &AgentName, now: Timestamp) -> StoreResult<AgentToken> {
    if existing(tx.db, name)?.revoked_at.is_none() {
        let sql = "UPDATE agent_tokens SET revoked_at = ?2 WHERE name = ?1";
        rows::execute(tx.db, sql, params![name.as_str(), now.ms()])?;
        let detail = json!({"token": name, "change": "revoked"});
        events::append(tx, EventKind::Changed, EventSubject::default(), &detail, now)?;
    }
    existing(tx.db, name)
}

fn last_use(db: &Db, name: &AgentName) -> StoreResult<Option<Timestamp>> {
    Ok(find(db, name)?.and_then(|token| token.last_used_at))
}

/// When the agent has last read a Mail, exact to one minute; `None` when it never has.
fn last_read(db: &Db, agent: &AgentName, mail: i64) -> StoreResult<Option<Timestamp>> {
    let sql = "SELECT at FROM agent_reads WHERE agent = ?1 AND mail = ?2";
    let at = rows::optional(db, sql, params![agent.as_str(), mail], |row| row.get(0))?;
    Ok(at.map(Timestamp::from_ms))
}

fn record(tx: &mut Tx<'_>, agent: &AgentName, mail: i64, now: Timestamp) -> StoreResult<()> {
    let last = last_read(tx.db, agent, mail)?;
    if !is_use_stored(last, now) {
        return Ok(());
    }
    if last.is_some() {
        rows::execute(tx.db, UPDATE_READ, params![agent.as_str(), mail, now.ms()])?;
        return Ok(());
    }
    let mail = mails::by_seq(tx.db, mail)?;
    let entry = &mail.entry;
    // A Mail whose text was erased has nothing that could be read.
    if entry.tombstone().is_some() {
        return Ok(());
    }
    // Every Mail has an author.
    let Some(author) = entry.participants.from.first() else { return Ok(()) };
    let answer_to = entry.session.answer_to(author, &entry.tunnel);
    let answer_to = answer_to
        .map_err(|error| StoreError::Damaged { what: "Mail", detail: error.to_string() })?;
    let (tunnel, session) = (entry.tunnel.as_str(), &entry.session.id);
    let (agent_name, trust) = (agent.as_str(), entry.trust.as_str());
    let row = params![agent_name, mail.seq, now.ms(), trust, tunnel, session, answer_to.as_str()];
    rows::execute(tx.db, INSERT_READ, row)?;
    let detail = json!({"mail": entry.id, "agent": agent, "trust": entry.trust});
    let subject = EventSubject { object: Some(mail.object), ..EventSubject::default() };
    events::append(tx, EventKind::Read, subject, &detail, now)
}

/// Deletes the reads of a Mail whose file was purged, or whose text was erased.
pub(super) fn delete_reads(tx: &Tx<'_>, mail: &StoredMail) -> StoreResult<()> {
    rows::execute(tx.db, "DELETE FROM agent_reads WHERE mail = ?1", [mail.seq])?;
    Ok(())
}

#[async_trait]
impl TokenStore for SqlStore {
    async fn add_token(
        &self,
        token: NewAgentToken,
        secret: TokenHash,
        now: Timestamp,
    ) -> StoreResult<AgentToken> {
        self.writer.run(move |tx| add(tx, &token, secret, now)).await
    }

    async fn find_token(&self, secret: TokenHash) -> StoreResult<Option<AgentToken>> {
        self.read(move |db| {
            let sql = format!("SELECT {COLUMNS} FROM agent_tokens WHERE secret = ?1");
            rows::optional(db, &sql, params![secret.0], read)
        })
        .await
    }

    async fn tokens(&self) -> StoreResult<Vec<AgentToken>> {
        self.read(|db| {
            let sql = format!("SELECT {COLUMNS} FROM agent_tokens ORDER BY name");
            rows::list_undamaged(db, "token", usize::MAX, &sql, [], read)
        })
        .await
    }

    async fn revoke_token(&self, name: &AgentName, now: Timestamp) -> StoreResult<AgentToken> {
        let name = name.clone();
        self.writer.run(move |tx| revoke(tx, &name, now)).await
    }

    async fn touch_token(&self, name: &AgentName, now: Timestamp) -> StoreResult<()> {
        let name = name.clone();
        let asked = name.clone();
        // Read first, so that the writer has nothing to do for most calls.
        let last = self.read(move |db| last_use(db, &asked)).await?;
        if !is_use_stored(last, now) {
            return Ok(());
        }
        self.writer
            .run(move |tx| {
                if is_use_stored(last_use(tx.db, &name)?, now) {
                    let sql = "UPDATE agent_tokens SET last_used_at = ?2 WHERE name = ?1";
                    rows::execute(tx.db, sql, params![name.as_str(), now.ms()])?;
                }
                Ok(())
            })
            .await
    }

    async fn record_reads(
        &self,
        agent: &AgentName,
        mails: Vec<i64>,
        now: Timestamp,
    ) -> StoreResult<()> {
        if mails.is_empty() {
            return Ok(());
        }
        let (agent, reader) = (agent.clone(), agent.clone());
        // Read first, so that the writer has nothing to do for most calls.
        let new = self.read(move |db| {
            let mut new = Vec::new();
            for mail in mails {
                if is_use_stored(last_read(db, &reader, mail)?, now) {
                    new.push(mail);
                }
            }
            Ok::<_, StoreError>(new)
        });
        let new = new.await?;
        if new.is_empty() {
            return Ok(());
        }
        let record_all =
            move |tx: &mut Tx<'_>| new.iter().try_for_each(|mail| record(tx, &agent, *mail, now));
        self.writer.run(record_all).await
    }

    async fn record_read(
        &self,
        agent: &AgentName,
        mail: &MailId,
        now: Timestamp,
    ) -> StoreResult<()> {
        let id = mail.clone();
        let seq = self.read(move |db| mails::find_seq(db, &id)).await?;
        let missing = || StoreError::Missing { what: "Mail", key: mail.to_string() };
        self.record_reads(agent, vec![seq.ok_or_else(missing)?], now).await
    }

    async fn record_message_read(
        &self,
        agent: &AgentName,
        msg_id: ObjId,
        now: Timestamp,
    ) -> StoreResult<()> {
        let mail = self.read_by_hash(move |db, recent| {
            let object = objects::seq_of(db, recent, &msg_id)?;
            Ok(mails::of_object(db, object)?.map(|mail| mail.seq))
        });
        self.record_reads(agent, mail.await?.into_iter().collect(), now).await
    }

    async fn agent_reads(
        &self,
        agent: &AgentName,
        since: Timestamp,
        limit: usize,
    ) -> StoreResult<Vec<AgentRead>> {
        let agent = agent.clone();
        self.read(move |db| {
            let since = params![agent.as_str(), since.ms()];
            rows::list_undamaged(db, "read of", limit, READS, since, read_mail_read)
        })
        .await
    }
}
