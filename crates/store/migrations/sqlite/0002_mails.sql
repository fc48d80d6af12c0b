-- From what was heard to Mails, claims and files. In `heard`, a row whose object is 0
-- stands for a message that waits in `kept`, or that nobody wanted.

-- Bursts under way: one row for each session and thread that is talking now.
CREATE TABLE windows (
    id        INTEGER PRIMARY KEY,
    tunnel    INTEGER NOT NULL,             -- parties.id
    name      TEXT    NOT NULL,             -- the tunnel's name
    provider  TEXT    NOT NULL,
    session   TEXT    NOT NULL,             -- session_id:thread_key
    held      INTEGER NOT NULL,             -- of strangers whom nobody has let in
    first_at  INTEGER NOT NULL,
    last_at   INTEGER NOT NULL,
    messages  INTEGER NOT NULL,
    bytes     INTEGER NOT NULL,
    closes_at INTEGER NOT NULL
) STRICT;
CREATE INDEX windows_by_session ON windows (tunnel, session, held, closes_at);
CREATE INDEX windows_by_end ON windows (closes_at);

-- Their messages. They leave in the transaction that makes their Mail.
CREATE TABLE kept (
    seq       INTEGER PRIMARY KEY,
    window    INTEGER NOT NULL,             -- windows.id
    heard     INTEGER NOT NULL,             -- heard.seq
    heard_at  INTEGER NOT NULL,
    said      TEXT    NOT NULL              -- JSON
) STRICT;
CREATE INDEX kept_by_window ON kept (window, seq);

CREATE TABLE mails (
    seq         INTEGER PRIMARY KEY,        -- in the order they became visible
    uid         TEXT    NOT NULL,           -- what its id has beyond the provider
    provider    TEXT    NOT NULL,
    object      INTEGER NOT NULL,           -- objects.seq
    author      INTEGER NOT NULL,           -- parties.id
    place       TEXT    NOT NULL,           -- where its file belongs
    change      INTEGER NOT NULL,           -- the number of its last change of place
    rested_on   INTEGER,                    -- the day of the hub's life it left inbound
    received_at INTEGER NOT NULL,
    entry       TEXT    NOT NULL            -- JSON: its line in the index
) STRICT;
CREATE UNIQUE INDEX mails_by_uid ON mails (uid, provider);
CREATE UNIQUE INDEX mails_by_change ON mails (change);
CREATE INDEX mails_by_object ON mails (object);
CREATE INDEX mails_by_provider ON mails (provider, seq);
CREATE INDEX mails_inbound ON mails (seq) WHERE place = 'inbound';
CREATE INDEX mails_resting ON mails (rested_on) WHERE place = 'archive';
CREATE INDEX mails_held ON mails (author) WHERE place = 'held';

-- One workspace's hold on one Mail; made when it is first claimed.
CREATE TABLE claims (
    id          INTEGER PRIMARY KEY,
    mail        INTEGER NOT NULL,           -- mails.seq
    workspace   TEXT    NOT NULL,
    state       TEXT    NOT NULL,
    due_at      INTEGER,                    -- while NEW
    holder      TEXT,                       -- while CLAIMED
    lease_until INTEGER,                    -- while CLAIMED
    attempts    INTEGER NOT NULL,
    epoch       INTEGER NOT NULL,
    revision    INTEGER NOT NULL,
    reason      TEXT,                       -- why it last failed
    updated_at  INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX claims_by_mail ON claims (mail, workspace);
CREATE INDEX claims_by_state ON claims (workspace, state, mail);
CREATE INDEX claims_leased ON claims (lease_until) WHERE state = 'CLAIMED';
CREATE INDEX claims_dead ON claims (id) WHERE state = 'DEADLETTER';
CREATE INDEX claims_open ON claims (id) WHERE state IN ('NEW', 'CLAIMED');

-- Files to be sent whose end somebody waits for.
CREATE TABLE drafts (
    uid       TEXT    NOT NULL PRIMARY KEY,
    provider  TEXT    NOT NULL,
    object    INTEGER NOT NULL,             -- objects.seq
    open      INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX drafts_open ON drafts (uid) WHERE open = 1;

-- Single numbers: how far the files are on disk, and how long the hub has lived.
CREATE TABLE marks (
    name      TEXT    NOT NULL PRIMARY KEY,
    value     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Where each day of the hub's life ends in the log of events.
CREATE TABLE days (
    day       INTEGER PRIMARY KEY,
    event     INTEGER NOT NULL              -- events.seq
) STRICT;
