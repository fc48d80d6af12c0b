-- The speed of a commit depends on the number of pages it writes. So rows contain small
-- integers instead of DIDs and hashes, and most indexes grow only at their end. The four
-- indexes with random keys are written in bulk (src/sql/bulk_index.rs).
-- All times are milliseconds since 1970 in UTC, by the courier's clock.

-- Number of rows by kind and state, updated with every commit.
CREATE TABLE counts (
    kind      TEXT    NOT NULL,             -- a box, or one of the other kinds of sql/counts.rs
    state     TEXT    NOT NULL,             -- state of the row, or the name of a worker
    entries   INTEGER NOT NULL,
    PRIMARY KEY (kind, state)
) STRICT, WITHOUT ROWID;

-- How far each bulk index has been merged into its table.
CREATE TABLE bulk_index_progress (
    name      TEXT    NOT NULL PRIMARY KEY,
    up_to     INTEGER NOT NULL              -- every row up to this one is in the table
) STRICT, WITHOUT ROWID;
INSERT INTO bulk_index_progress (name, up_to)
VALUES ('object_hashes', 0), ('external_ids', 0), ('timeline', 0), ('email_hashes', 0);

-- Every DID that the store has seen: contacts, groups, tunnels, senders, recipients.
CREATE TABLE parties (
    id        INTEGER PRIMARY KEY,
    did       TEXT    NOT NULL UNIQUE,
    level     TEXT,                         -- contact level; NULL: not a contact
    names     TEXT    NOT NULL DEFAULT '[]',-- JSON array of display names
    here      INTEGER NOT NULL DEFAULT 0,   -- 1: the operator gave this DID a local INBOX
    has_box   INTEGER NOT NULL DEFAULT 0,   -- 1: there is a record in a box of this DID
    is_group  INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX parties_known ON parties (id) WHERE level IS NOT NULL OR here = 1;
CREATE INDEX parties_groups ON parties (id) WHERE is_group = 1;

-- Names of contacts and groups, kept in step with parties.names.
CREATE TABLE contact_names (
    name      TEXT    NOT NULL,             -- with ASCII letters in lower case
    party     INTEGER NOT NULL,             -- parties.id
    PRIMARY KEY (name, party)
) STRICT, WITHOUT ROWID;
CREATE INDEX contact_names_by_party ON contact_names (party);

CREATE TABLE tunnels (
    party      INTEGER PRIMARY KEY,         -- parties.id of the tunnel's DID
    name       TEXT    NOT NULL UNIQUE,
    provider   TEXT    NOT NULL,
    strangers  TEXT    NOT NULL,            -- policy for messages from strangers
    idempotent INTEGER NOT NULL,            -- 1: the provider accepts idempotency keys
    finds_sent INTEGER NOT NULL,            -- 1: the adapter can look for a sent message
    reads_history INTEGER NOT NULL,         -- 1: the newest message of each chat is stored
    labels     TEXT    NOT NULL,            -- JSON: the labels of its Mails
    active     INTEGER NOT NULL DEFAULT 1   -- 0: paused by an operator
) STRICT;

-- Addresses of contacts at tunnels.
CREATE TABLE bindings (
    contact   INTEGER NOT NULL,             -- parties.id
    tunnel    TEXT    NOT NULL,             -- tunnels.name
    kind      TEXT    NOT NULL,             -- kind of the endpoint
    address   TEXT    NOT NULL,
    priority  INTEGER NOT NULL,             -- the highest is used first
    PRIMARY KEY (contact, tunnel, kind, address)
) STRICT, WITHOUT ROWID;
CREATE INDEX bindings_by_address ON bindings (tunnel, address, kind);

-- Senders that a target has blocked.
CREATE TABLE blocks (
    sender    INTEGER NOT NULL,             -- parties.id
    target    INTEGER NOT NULL,             -- parties.id
    PRIMARY KEY (sender, target)
) STRICT, WITHOUT ROWID;

-- Readers of groups.
CREATE TABLE subscribers (
    group_id  INTEGER NOT NULL,             -- parties.id
    reader    INTEGER NOT NULL,             -- parties.id
    PRIMARY KEY (group_id, reader)
) STRICT, WITHOUT ROWID;

-- Immutable messages and receipts, each stored once.
CREATE TABLE objects (
    seq       INTEGER PRIMARY KEY,
    hash      BLOB    NOT NULL,             -- SHA-256 of the canonical text
    kind      TEXT    NOT NULL,             -- cymsg or cymsgr
    body      BLOB,                         -- canonical text; NULL: in a file named by the hash
    erased_at INTEGER,                      -- NULL: it has a text. Otherwise only its hash is left
    superseded_by INTEGER                   -- objects.seq of the rewritten Mail; only when erased
) STRICT;

-- Files with the bodies of large objects and with attachments. A row is written after the sync
-- of its file.
CREATE TABLE blobs (
    hash      BLOB    NOT NULL PRIMARY KEY, -- SHA-256 of the bytes, the name of the file
    bytes     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Objects by hash. Written in bulk.
CREATE TABLE object_hashes (
    hash_prefix INTEGER NOT NULL,           -- first eight bytes of the hash
    object      INTEGER NOT NULL,           -- objects.seq
    PRIMARY KEY (hash_prefix, object)
) STRICT, WITHOUT ROWID;

-- Provider message ids that were received, and the messages they became.
CREATE TABLE external_ids (
    seq         INTEGER PRIMARY KEY,
    tunnel      INTEGER NOT NULL,           -- parties.id
    external_id TEXT    NOT NULL,
    object      INTEGER NOT NULL            -- objects.seq; 0: not merged yet, or rejected
) STRICT;

-- External ids by hash. Written in bulk.
CREATE TABLE external_ids_by_hash (
    hash_prefix INTEGER NOT NULL,           -- first eight bytes of the SHA-256 of the id
    external_id INTEGER NOT NULL,           -- external_ids.seq
    PRIMARY KEY (hash_prefix, external_id)
) STRICT, WITHOUT ROWID;

-- Hashes of the bodies of received messages that an id alone does not identify. A message of the
-- same tunnel with the same hash is a duplicate.
CREATE TABLE body_hashes (
    tunnel      INTEGER NOT NULL,           -- parties.id
    hash        BLOB    NOT NULL,           -- SHA-256 of the body
    external_id INTEGER NOT NULL,           -- external_ids.seq of the message
    expires_at  INTEGER,                    -- NULL: never
    PRIMARY KEY (tunnel, hash)
) STRICT, WITHOUT ROWID;
CREATE INDEX body_hashes_by_end ON body_hashes (expires_at) WHERE expires_at IS NOT NULL;

-- Idempotency keys of sends.
CREATE TABLE idempotency_keys (
    key       TEXT    NOT NULL PRIMARY KEY,
    object    INTEGER NOT NULL              -- objects.seq of the message
) STRICT, WITHOUT ROWID;

-- One message in one box of one owner.
CREATE TABLE records (
    seq         INTEGER PRIMARY KEY,
    object      INTEGER NOT NULL,           -- objects.seq
    tag         INTEGER NOT NULL,           -- second part of the record id; the first is the hash
    owner       INTEGER NOT NULL,           -- parties.id
    box         TEXT    NOT NULL,
    state       TEXT    NOT NULL,
    attempts    INTEGER NOT NULL,           -- number of leases so far
    epoch       INTEGER NOT NULL,           -- number of the last lease
    revision    INTEGER NOT NULL,           -- number of changes
    holder      TEXT,                       -- only in state READING
    lease_until INTEGER,                    -- only in state READING
    session     INTEGER NOT NULL,           -- parties.id of the other party
    group_id    INTEGER,                    -- parties.id of the group it was sent to
    tunnel      INTEGER,                    -- parties.id of the tunnel it came through
    thread_key  TEXT,                       -- thread of the message
    tags        TEXT,                       -- JSON array of the user's tags; NULL: none
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX records_by_tag ON records (object, tag);
CREATE INDEX records_by_state ON records (owner, box, state, seq);
CREATE INDEX records_leased ON records (lease_until) WHERE state = 'READING';
-- Only records with a thread or a group have an entry, so that a plain dispatch does not pay.
CREATE INDEX records_by_thread ON records (owner, box, thread_key, seq)
    WHERE thread_key IS NOT NULL;
CREATE INDEX records_by_group ON records (owner, box, group_id, seq) WHERE group_id IS NOT NULL;

-- Records by the user's tags.
CREATE TABLE record_tags (
    owner     INTEGER NOT NULL,             -- parties.id
    box       TEXT    NOT NULL,
    tag       TEXT    NOT NULL,
    record    INTEGER NOT NULL,             -- records.seq
    PRIMARY KEY (owner, box, tag, record)
) STRICT, WITHOUT ROWID;

-- One message on its way to one target through one tunnel.
CREATE TABLE deliveries (
    seq             INTEGER PRIMARY KEY,
    object          INTEGER NOT NULL,       -- objects.seq
    tag             INTEGER NOT NULL,       -- second part of the delivery id; the first is the hash
    tunnel          INTEGER NOT NULL,       -- parties.id
    author          INTEGER NOT NULL,       -- parties.id
    plan            TEXT    NOT NULL,       -- JSON: the delivery plan, fixed at creation
    target          INTEGER NOT NULL,       -- first eight bytes of the SHA-256 of kind and address
    state           TEXT    NOT NULL,
    due_at          INTEGER,                -- only in states WAIT and FAILED
    place           INTEGER,                -- its place among those of the target: when it became due, or the smallest number. NULL: scheduled or ended
    ready_at        INTEGER,                -- when it can be leased; NULL: leased, ended or behind another one
    attempts        INTEGER NOT NULL,       -- number of attempts so far
    rate_limited    INTEGER NOT NULL DEFAULT 0, -- number of attempts that a rate limit has ended
    epoch           INTEGER NOT NULL,       -- number of the last lease
    revision        INTEGER NOT NULL,       -- number of changes
    holder          TEXT,                   -- only in state SENDING
    lease_until     INTEGER,                -- only in state SENDING
    first_try       INTEGER,                -- time of the first attempt
    outcome_unknown INTEGER NOT NULL,       -- 1: the next attempt looks for the message at the provider
    failure         TEXT,                   -- JSON, only in states FAILED, DEAD and UNCERTAIN
    external_msg_id TEXT,                   -- the provider's message id, only in state SENT
    delivered_at    INTEGER,                -- only in state SENT
    created_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX deliveries_by_tag ON deliveries (object, tag);
-- Only the first delivery of each target, and those that are scheduled: a million deliveries that
-- wait for one target cost nothing here.
CREATE INDEX deliveries_ready ON deliveries (tunnel, ready_at, seq) WHERE ready_at IS NOT NULL;
CREATE INDEX deliveries_by_target ON deliveries (tunnel, target, place, seq)
    WHERE place IS NOT NULL;
CREATE INDEX deliveries_by_state ON deliveries (tunnel, state, seq);
CREATE INDEX deliveries_by_external ON deliveries (external_msg_id)
    WHERE external_msg_id IS NOT NULL;
CREATE INDEX deliveries_leased ON deliveries (lease_until) WHERE state = 'SENDING';

-- The parts of deliveries that were sent in more than one request.
CREATE TABLE delivery_parts (
    delivery        INTEGER NOT NULL,       -- deliveries.seq
    part            INTEGER NOT NULL,       -- number of the part, from 0
    external_msg_id TEXT,                   -- the provider's id of the part
    PRIMARY KEY (delivery, part)
) STRICT, WITHOUT ROWID;
CREATE INDEX delivery_parts_by_external ON delivery_parts (external_msg_id)
    WHERE external_msg_id IS NOT NULL;

-- One conversation of an owner with another party.
CREATE TABLE sessions (
    id        INTEGER PRIMARY KEY,
    owner     INTEGER NOT NULL,             -- parties.id
    peer      INTEGER NOT NULL,             -- parties.id
    last      INTEGER NOT NULL,             -- records.seq of the newest message
    unread    INTEGER NOT NULL              -- number of UNREAD messages
) STRICT;
CREATE UNIQUE INDEX sessions_by_peer ON sessions (peer, owner);
CREATE INDEX sessions_by_last ON sessions (owner, last);

-- Messages of conversations, in both directions. Written in bulk.
CREATE TABLE timeline (
    session   INTEGER NOT NULL,             -- sessions.id
    record    INTEGER NOT NULL,             -- records.seq
    PRIMARY KEY (session, record)
) STRICT, WITHOUT ROWID;

-- Read receipts: the status of each group message per reader.
CREATE TABLE receipts (
    group_id  INTEGER NOT NULL,             -- parties.id
    object    INTEGER NOT NULL,             -- objects.seq of the message
    reader    INTEGER NOT NULL,             -- parties.id
    status    TEXT    NOT NULL,
    at        INTEGER NOT NULL,             -- time of the receipt
    receipt   INTEGER NOT NULL,             -- objects.seq of the receipt
    reason    TEXT,                         -- given by the reader
    PRIMARY KEY (group_id, object, reader)
) STRICT, WITHOUT ROWID;

-- The event log, append-only.
CREATE TABLE events (
    seq       INTEGER PRIMARY KEY,
    at        INTEGER NOT NULL,
    kind      TEXT    NOT NULL,
    object    INTEGER,                      -- objects.seq
    record    TEXT,                         -- rec_ or dlv_ id
    owner     INTEGER,                      -- parties.id
    detail    TEXT    NOT NULL              -- JSON
) STRICT;
CREATE INDEX events_by_object ON events (object, seq) WHERE object IS NOT NULL;

-- Open merge windows, usually one per session and thread. A window has times, no content.
CREATE TABLE merge_windows (
    id          INTEGER PRIMARY KEY,
    tunnel      INTEGER NOT NULL,           -- parties.id
    tunnel_name TEXT    NOT NULL,
    provider    TEXT    NOT NULL,
    session     TEXT    NOT NULL,           -- session id and thread key
    held        INTEGER NOT NULL,           -- 1: messages of a stranger that wait for release
    first_at    INTEGER NOT NULL,           -- time of the first message
    last_at     INTEGER NOT NULL,           -- time of the last message
    messages    INTEGER NOT NULL,           -- number of messages
    bytes       INTEGER NOT NULL,           -- size of their JSON
    files       INTEGER NOT NULL,           -- number of their rows in inbound_files
    pending_files INTEGER NOT NULL,         -- number of those that are not fetched yet
    ready_at    INTEGER NOT NULL,           -- when it would be merged without waiting for files
    closes_at   INTEGER NOT NULL,           -- the window is merged at this time
    revision    INTEGER NOT NULL            -- number of changes of stored messages and files
) STRICT;
CREATE INDEX merge_windows_by_session ON merge_windows (tunnel, session, held, closes_at);
CREATE INDEX merge_windows_by_end ON merge_windows (closes_at);

-- Inbound messages in merge windows. Deleted in the transaction that inserts their Mail. The
-- external id is the key, so that an edit finds its message without another index.
CREATE TABLE inbound_messages (
    external_id  INTEGER PRIMARY KEY,       -- external_ids.seq
    merge_window INTEGER NOT NULL,          -- merge_windows.id
    message      TEXT    NOT NULL           -- JSON
) STRICT;
CREATE INDEX inbound_messages_by_window ON inbound_messages (merge_window, external_id);

-- Files that are fetched after their message is stored, until the message is merged.
-- Numbers are never used again: a download that outlives its row must not end another file.
CREATE TABLE inbound_files (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    tunnel       INTEGER NOT NULL,          -- parties.id
    external_id  INTEGER NOT NULL,          -- external_ids.seq of the message
    position     INTEGER NOT NULL,          -- number among its attachments, from 0
    merge_window INTEGER,                   -- merge_windows.id; NULL: the message is a letter
    handle       TEXT,                      -- as the adapter wrote it, can be a secret; NULL: ended
    due_at       INTEGER,                   -- when the next attempt starts; NULL: ended
    attempts     INTEGER NOT NULL,          -- number of failed attempts
    announced_at INTEGER NOT NULL,
    hash         BLOB,                      -- SHA-256 of the bytes; NULL: not fetched
    bytes        INTEGER,                   -- size, only with a hash
    name         TEXT,                      -- as the provider gave it with the bytes
    mime_type    TEXT,                      -- as the provider gave it with the bytes
    missing      TEXT                       -- why the last attempt failed
) STRICT;
CREATE UNIQUE INDEX inbound_files_by_message ON inbound_files (external_id, position);
CREATE INDEX inbound_files_by_window ON inbound_files (merge_window) WHERE merge_window IS NOT NULL;
CREATE INDEX inbound_files_due ON inbound_files (tunnel, due_at, seq) WHERE due_at IS NOT NULL;

-- Messages that were corrected by later messages: each of those messages. The last one is the
-- newest version.
CREATE TABLE corrected_messages (
    external_id  INTEGER NOT NULL,          -- external_ids.seq of the first version
    version      INTEGER NOT NULL,          -- external_ids.seq of a later version
    PRIMARY KEY (external_id, version)
) STRICT, WITHOUT ROWID;

-- The newest merged message of each chat, for tunnels that read the history of their provider.
CREATE TABLE chat_positions (
    tunnel       INTEGER NOT NULL,          -- parties.id
    session      TEXT    NOT NULL,          -- id of the chat
    kind         TEXT    NOT NULL,          -- kind of the chat
    name         TEXT,                      -- name of the chat; NULL: unknown, or a direct chat
    message_id   TEXT    NOT NULL,          -- the provider's id
    at           INTEGER,                   -- by the provider's clock
    object       INTEGER NOT NULL,          -- objects.seq of the newest Mail
    PRIMARY KEY (tunnel, session)
) STRICT, WITHOUT ROWID;
CREATE INDEX chat_positions_newest ON chat_positions (tunnel, object);

CREATE TABLE mails (
    seq              INTEGER PRIMARY KEY,   -- in the order of visibility
    uid              TEXT    NOT NULL,      -- the Mail's id without the provider
    provider         TEXT    NOT NULL,
    object           INTEGER NOT NULL,      -- objects.seq
    author           INTEGER NOT NULL,      -- parties.id
    owner            INTEGER NOT NULL,      -- parties.id of the courier's owner
    location         TEXT    NOT NULL,      -- directory that the file belongs in
    change           INTEGER NOT NULL,      -- number of the last change of location
    day              INTEGER NOT NULL,      -- retention day on which the location last changed
    received_at      INTEGER NOT NULL,      -- time of the merge
    entry            TEXT    NOT NULL       -- JSON: the Mail's line in the index
) STRICT;
CREATE UNIQUE INDEX mails_by_uid ON mails (uid, provider);
CREATE UNIQUE INDEX mails_by_change ON mails (change);
CREATE INDEX mails_by_object ON mails (object);
CREATE INDEX mails_by_provider ON mails (provider, seq);
CREATE INDEX mails_inbound ON mails (day, seq) WHERE location = 'inbound';
CREATE INDEX mails_archived ON mails (day) WHERE location = 'archive';
CREATE INDEX mails_held ON mails (author) WHERE location = 'held';

-- One workspace's claim on one Mail, created when the workspace first claims it.
CREATE TABLE claims (
    id          INTEGER PRIMARY KEY,
    mail        INTEGER NOT NULL,           -- mails.seq
    workspace   TEXT    NOT NULL,
    state       TEXT    NOT NULL,
    due_at      INTEGER,                    -- only in state NEW
    holder      TEXT,                       -- only in state CLAIMED
    lease_until INTEGER,                    -- only in state CLAIMED
    attempts    INTEGER NOT NULL,           -- number of leases so far
    epoch       INTEGER NOT NULL,           -- number of the last lease
    revision    INTEGER NOT NULL,           -- number of changes
    reason      TEXT,                       -- reason of the last failure
    updated_at  INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX claims_by_mail ON claims (mail, workspace);
CREATE INDEX claims_by_state ON claims (workspace, state, mail);
CREATE INDEX claims_leased ON claims (lease_until) WHERE state = 'CLAIMED';
CREATE INDEX claims_dead ON claims (id) WHERE state = 'DEADLETTER';
CREATE INDEX claims_open ON claims (id) WHERE state IN ('NEW', 'CLAIMED');

-- Drafts that were sent from files.
CREATE TABLE drafts (
    uid       TEXT    NOT NULL PRIMARY KEY, -- name of the file
    provider  TEXT    NOT NULL,             -- provider directory of the file
    courier   TEXT    NOT NULL,             -- id of the courier that has the file
    object    INTEGER NOT NULL,             -- objects.seq
    open      INTEGER NOT NULL              -- 1: the result is not reported yet
) STRICT, WITHOUT ROWID;
CREATE INDEX drafts_open ON drafts (courier, uid) WHERE open = 1;
CREATE INDEX drafts_by_object ON drafts (object) WHERE open = 1;

-- How far the Mail files of each courier are on disk.
CREATE TABLE file_progress (
    courier     TEXT    NOT NULL PRIMARY KEY, -- id of the courier
    change      INTEGER NOT NULL,           -- every change up to this number is on disk
    index_bytes INTEGER NOT NULL,           -- synced bytes of the index; 0: it must be rewritten
    index_seq   INTEGER NOT NULL,           -- the last Mail within index_bytes
    generation  INTEGER NOT NULL            -- number of the index
) STRICT, WITHOUT ROWID;

-- Single numbers: the retention clock and positions in the event log.
CREATE TABLE progress (
    name      TEXT    NOT NULL PRIMARY KEY,
    value     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The last event of each retention day.
CREATE TABLE event_days (
    day       INTEGER PRIMARY KEY,
    event     INTEGER NOT NULL              -- events.seq
) STRICT;

-- Letters in the pipeline. A step updates the letter's row, so the row is narrow, and the
-- texts are in separate tables.
CREATE TABLE letters (
    seq         INTEGER PRIMARY KEY,
    mark        INTEGER NOT NULL,           -- second part of the letter id; differs between stores
    direction   TEXT    NOT NULL,           -- inbound or outbound
    tunnel      TEXT,                       -- tunnels.name, when it is known
    source      TEXT    NOT NULL,           -- submitted, inbound, dispatch or send
    object      INTEGER,                    -- objects.seq of the message it was created from
    external_id INTEGER,                    -- external_ids.seq of the inbound message
    state       TEXT    NOT NULL,
    worker      TEXT    NOT NULL,           -- the external worker it waits for; '': the dispatcher
    due_at      INTEGER,                    -- only in state WAITING
    until       INTEGER,                    -- deadline of the external worker, only in state AWAY
    holder      TEXT,                       -- the run that waits for the answer, only in state AWAY; NULL: none
    attempts    INTEGER NOT NULL,           -- attempts of the current worker
    revision    INTEGER NOT NULL,           -- number of changes
    held_by     TEXT,                       -- the built-in worker that holds it, only in state WAITING
    hold_key    TEXT,                       -- the key under which that worker holds it
    failure     TEXT,                       -- reason of the last failure, of the trash or of the death
    became      INTEGER,                    -- objects.seq of the message it became
    merged_into TEXT,                       -- id of another letter, only in state MERGED
    day         INTEGER,                    -- retention day on which it became DONE, MERGED or TRASHED
    verdicts    TEXT    NOT NULL,           -- JSON array, oldest first
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    erased_at   INTEGER                     -- NULL: it has a text. Otherwise its texts are deleted
) STRICT;
CREATE INDEX letters_waiting ON letters (worker, due_at, seq) WHERE state = 'WAITING';
CREATE INDEX letters_away ON letters (worker, until, seq) WHERE state = 'AWAY';
CREATE INDEX letters_held ON letters (held_by, hold_key, seq) WHERE held_by IS NOT NULL;
CREATE INDEX letters_by_state ON letters (state, seq) WHERE state <> 'DONE';
CREATE INDEX letters_ended ON letters (state, day, seq) WHERE day IS NOT NULL;
CREATE INDEX letters_by_object ON letters (object, seq) WHERE object IS NOT NULL;
CREATE INDEX letters_by_external_id ON letters (external_id) WHERE external_id IS NOT NULL;
CREATE INDEX letters_by_became ON letters (became, seq) WHERE became IS NOT NULL;

-- What a letter was created from, beyond its object. No row: only the object.
CREATE TABLE letter_sources (
    letter    INTEGER PRIMARY KEY,          -- letters.seq
    hash      BLOB,                         -- SHA-256 of the text, when the text is in a file
    body      TEXT                          -- JSON; NULL: in a file named by the hash
) STRICT;

-- Letters as changed by workers. No row: unchanged.
CREATE TABLE letter_changes (
    letter    INTEGER PRIMARY KEY,          -- letters.seq
    hash      BLOB,                         -- SHA-256 of the text, when the text is in a file
    body      TEXT                          -- JSON; NULL: in a file named by the hash
) STRICT;

-- Idempotency keys of submitted letters.
CREATE TABLE letter_keys (
    key       TEXT    NOT NULL PRIMARY KEY,
    letter    INTEGER NOT NULL,             -- letters.seq
    digest    BLOB    NOT NULL              -- SHA-256 of the submitted letter
) STRICT, WITHOUT ROWID;
CREATE INDEX letter_keys_by_letter ON letter_keys (letter);

-- The DIDs of a person whose text is being erased. Deleted when the erasure is complete.
CREATE TABLE erasures (
    did       TEXT    NOT NULL PRIMARY KEY
) STRICT, WITHOUT ROWID;

-- Attachments and large texts of erased messages, until their files are removed.
CREATE TABLE erased_files (
    hash      BLOB    NOT NULL PRIMARY KEY  -- SHA-256 of the bytes, the name of the file
) STRICT, WITHOUT ROWID;

-- Messages whose text was erased or rewritten, in this order. The search indexes of all couriers
-- follow it, also after a time in which a courier did not run, so that no row is deleted.
CREATE TABLE erased_objects (
    seq       INTEGER PRIMARY KEY,
    object    INTEGER NOT NULL              -- objects.seq
) STRICT;

-- Files of purged mails and letters, until it is known whether something else refers to them.
CREATE TABLE purged_files (
    hash      BLOB    NOT NULL PRIMARY KEY  -- SHA-256 of the bytes, the name of the file
) STRICT, WITHOUT ROWID;

-- Ends of rate limit reservations. No index on the end: every letter that passes a rate limit
-- writes here, and expired rows are found by a scan now and then.
CREATE TABLE reservations (
    key            TEXT    NOT NULL PRIMARY KEY, -- starts with the worker's name and a colon
    reserved_until INTEGER NOT NULL              -- microseconds since 1970
) STRICT, WITHOUT ROWID;

-- Where the next page of a stream of a tunnel starts, such as a mail folder.
CREATE TABLE stream_cursors (
    tunnel    INTEGER NOT NULL,             -- parties.id
    stream    TEXT    NOT NULL,             -- name of the folder
    cursor    TEXT    NOT NULL,             -- as the adapter wrote it
    PRIMARY KEY (tunnel, stream)
) STRICT, WITHOUT ROWID;

-- Watched e-mail accounts. Servers and passwords are in the configuration.
CREATE TABLE email_accounts (
    tunnel          INTEGER PRIMARY KEY,    -- parties.id
    address         TEXT    NOT NULL,
    description     TEXT,
    last_scanned_at INTEGER,                -- end of the last round
    last_scan       TEXT,                   -- JSON: what the last round did
    created_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL
) STRICT;

-- Folders of accounts. A folder whose UIDVALIDITY changes gets another row.
CREATE TABLE email_folders (
    id           INTEGER PRIMARY KEY,
    tunnel       INTEGER NOT NULL,          -- parties.id
    name         TEXT    NOT NULL,
    uid_validity INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX email_folders_by_name ON email_folders (tunnel, name, uid_validity);

-- One task per mail of a folder.
CREATE TABLE email_tasks (
    seq           INTEGER PRIMARY KEY,
    tunnel        INTEGER NOT NULL,         -- parties.id
    folder        INTEGER NOT NULL,         -- email_folders.id
    uid           INTEGER NOT NULL,
    subject       TEXT    NOT NULL,
    sent_at       INTEGER,                  -- date in the header of the mail
    internal_date INTEGER,                  -- when the server received the mail
    bytes         INTEGER NOT NULL,         -- size of the whole mail
    cut           TEXT,                     -- why only the header is stored
    copy_of       INTEGER,                  -- seq of the task with the same bytes; it can be purged
    status        TEXT    NOT NULL,
    due_at        INTEGER,                  -- received, error: when it is started; with a holder: end of the lease
    holder        TEXT,                     -- only in status in_progress, until the forward is posted
    attempts      INTEGER NOT NULL,         -- attempts since the last retry by an operator
    epoch         INTEGER NOT NULL,         -- number of the last lease
    revision      INTEGER NOT NULL,         -- number of changes
    forward       INTEGER,                  -- objects.seq of the message that forwards the mail
    error         TEXT,                     -- reason of the status skipped_no_match or error
    dropped       INTEGER NOT NULL,         -- 1: an operator dropped the error
    day           INTEGER,                  -- retention day on which it ended
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX email_tasks_by_uid ON email_tasks (folder, uid);
CREATE INDEX email_tasks_by_status ON email_tasks (tunnel, status, seq);
CREATE INDEX email_tasks_due ON email_tasks (tunnel, due_at, seq) WHERE due_at IS NOT NULL;
CREATE INDEX email_tasks_leased ON email_tasks (due_at) WHERE holder IS NOT NULL;
CREATE INDEX email_tasks_forwarding ON email_tasks (tunnel, seq)
    WHERE forward IS NOT NULL AND dropped = 0 AND status IN ('in_progress', 'error');
CREATE INDEX email_tasks_by_forward ON email_tasks (forward) WHERE forward IS NOT NULL;
CREATE INDEX email_tasks_dead ON email_tasks (seq)
    WHERE status = 'error' AND due_at IS NULL AND dropped = 0;
CREATE INDEX email_tasks_ended ON email_tasks (day, seq) WHERE day IS NOT NULL;

-- The mails of tasks, in the order of registration. Copies have no row.
CREATE TABLE email_mails (
    task      INTEGER PRIMARY KEY,          -- email_tasks.seq
    raw       BLOB                          -- bytes of the mail; NULL: in a file named by the hash
) STRICT;

-- Hashes of all mails that were registered. A row stays when its task is purged, so that a mail
-- that appears again is recognised.
CREATE TABLE email_hashes (
    task      INTEGER PRIMARY KEY,          -- email_tasks.seq
    tunnel    INTEGER NOT NULL,             -- parties.id
    hash      BLOB    NOT NULL              -- SHA-256 of the stored bytes
) STRICT;

-- Hashes of mails by their beginning. Written in bulk.
CREATE TABLE email_tasks_by_hash (
    hash_prefix INTEGER NOT NULL,           -- first eight bytes of the hash
    task        INTEGER NOT NULL,           -- email_hashes.task
    PRIMARY KEY (hash_prefix, task)
) STRICT, WITHOUT ROWID;

-- The directory of people, in the order of the import.
CREATE TABLE people (
    seq       INTEGER PRIMARY KEY,
    person    TEXT    NOT NULL              -- JSON
) STRICT;

-- Random keys of this store.
CREATE TABLE secrets (
    name      TEXT    NOT NULL PRIMARY KEY,
    value     BLOB    NOT NULL
) STRICT, WITHOUT ROWID;

-- Tokens of agents. The secrets are not stored.
CREATE TABLE agent_tokens (
    name         TEXT    NOT NULL PRIMARY KEY, -- name of the agent
    secret       BLOB    NOT NULL,          -- SHA-256 of the secret
    scopes       TEXT    NOT NULL,          -- names with commas: read,claim
    workspace    TEXT    NOT NULL,          -- workspace of all claims of the agent
    did          TEXT    NOT NULL,          -- author of all messages of the agent
    created_at   INTEGER NOT NULL,
    last_used_at INTEGER,                   -- exact to one minute
    revoked_at   INTEGER                    -- NULL: the token is valid
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX agent_tokens_by_secret ON agent_tokens (secret);

-- Mails that agents have read, or were shown a part of, until the file of the Mail is purged.
CREATE TABLE agent_reads (
    agent     TEXT    NOT NULL,             -- agent_tokens.name
    mail      INTEGER NOT NULL,             -- mails.seq
    at        INTEGER NOT NULL,             -- last time that the agent read it, exact to one minute
    trust     TEXT    NOT NULL,             -- of the Mail: untrusted or known
    tunnel    TEXT    NOT NULL,             -- tunnel of the Mail
    session   TEXT    NOT NULL,             -- id of its chat
    answer_to TEXT    NOT NULL,             -- DID of its author or chat
    PRIMARY KEY (agent, mail)
) STRICT, WITHOUT ROWID;
CREATE INDEX agent_reads_by_time ON agent_reads (agent, at);
CREATE INDEX agent_reads_by_mail ON agent_reads (mail);

-- Messages that wait for a person before they are sent. A message can have more than one: its
-- agent can be halted after the message was approved. The last one counts.
CREATE TABLE approvals (
    seq         INTEGER PRIMARY KEY,
    object      INTEGER NOT NULL,           -- objects.seq of the message
    author      INTEGER NOT NULL,           -- parties.id
    origin      TEXT    NOT NULL,           -- JSON: on whose behalf it is sent
    targets     TEXT    NOT NULL,           -- JSON array: targets and plans, fixed at creation
    thread_key  TEXT,                       -- thread of the message
    rule        TEXT    NOT NULL,           -- the rule that held it
    why         TEXT    NOT NULL,           -- what the rule found
    not_before  INTEGER,                    -- time of the first attempt; NULL: at once
    state       TEXT    NOT NULL,
    expires_at  INTEGER NOT NULL,           -- until when it can be answered
    answered_by TEXT,                       -- owner, name of a token, or DID of a chat account
    answered_at INTEGER,                    -- NULL: only in state PENDING
    reason      TEXT,                       -- only in state REJECTED
    replaced_by INTEGER,                    -- objects.seq of the edited message, only in state REPLACED
    asked       INTEGER NOT NULL,           -- 1: the accounts of approvals.ask were asked
    revision    INTEGER NOT NULL,           -- number of changes
    created_at  INTEGER NOT NULL
) STRICT;
CREATE INDEX approvals_by_object ON approvals (object, seq);
CREATE INDEX approvals_by_state ON approvals (state, seq);
CREATE INDEX approvals_by_end ON approvals (expires_at) WHERE state = 'PENDING';
CREATE INDEX approvals_unasked ON approvals (seq) WHERE state = 'PENDING' AND asked = 0;

-- Codes that were posted to the accounts of approvals.ask.
CREATE TABLE approval_asks (
    target    TEXT    NOT NULL,             -- DID of the account
    code      TEXT    NOT NULL,             -- five lower-case consonants
    approval  INTEGER NOT NULL,             -- approvals.seq
    at        INTEGER NOT NULL,
    PRIMARY KEY (target, code)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX approval_asks_by_approval ON approval_asks (approval, target);
CREATE INDEX approval_asks_by_time ON approval_asks (at);

-- Accounts that have sent wrong codes.
CREATE TABLE approval_locks (
    target       TEXT    NOT NULL PRIMARY KEY, -- DID of the account
    wrong_codes  INTEGER NOT NULL,          -- wrong codes in a row
    locked_until INTEGER                    -- NULL: never locked
) STRICT, WITHOUT ROWID;

-- What the approval policy decided about messages of agents, and of the owner if rules apply to
-- the owner. Purged with the events of the same time.
CREATE TABLE send_decisions (
    event     INTEGER PRIMARY KEY,          -- events.seq of the event that names the message, so that no index is needed
    agent     TEXT    NOT NULL,             -- name of the agent's token; '': the owner
    held      INTEGER NOT NULL,             -- 0: the message was sent
    rule      TEXT    NOT NULL,             -- the rule that decided
    limited   INTEGER NOT NULL,             -- 1: the rule sends at a rate, and this message counts
    facts     TEXT    NOT NULL,             -- JSON: what the decision depends on
    at        INTEGER NOT NULL              -- grows with the number of the event
) STRICT;
CREATE INDEX send_decisions_by_rule ON send_decisions (agent, rule, at) WHERE limited = 1;
CREATE INDEX send_decisions_by_agent ON send_decisions (agent, at, event) WHERE agent <> '';

-- Halts that apply now. The transaction that leases a delivery reads them.
CREATE TABLE halts (
    scope     TEXT    NOT NULL PRIMARY KEY, -- all, agent:NAME or tunnel:ID
    locked    INTEGER NOT NULL,             -- 1: writes of agents are rejected
    halted_by TEXT    NOT NULL,
    at        INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- How many events of a kind happened in a minute, counted from the event log. Kept 8 days.
CREATE TABLE figures (
    minute    INTEGER NOT NULL,             -- minutes since 1970
    kind      TEXT    NOT NULL,             -- as events.kind in the API: received, sent …
    tunnel    TEXT    NOT NULL,             -- id of the tunnel; empty: none
    worker    TEXT    NOT NULL,             -- worker that returned a verdict; empty: no verdict
    count     INTEGER NOT NULL,
    PRIMARY KEY (minute, kind, tunnel, worker)
) STRICT, WITHOUT ROWID;

-- The couriers that use this store.
CREATE TABLE couriers (
    id        TEXT    NOT NULL PRIMARY KEY, -- UUID of the courier
    boot      INTEGER NOT NULL,             -- number of starts
    tunnels   TEXT    NOT NULL,             -- JSON array of the tunnels in its configuration
    seen_at   INTEGER NOT NULL,             -- when it last reported that it lives
    live      INTEGER NOT NULL              -- 0: it has stopped
) STRICT, WITHOUT ROWID;

-- Work that one of these couriers does. Empty while the store has only one courier.
CREATE TABLE duties (
    name      TEXT    NOT NULL PRIMARY KEY, -- leader, dispatcher, or tunnel: and the id of a tunnel
    courier   TEXT,                         -- couriers.id of the holder; NULL: released
    boot      INTEGER NOT NULL,             -- couriers.boot of the holder; 0: released
    epoch     INTEGER NOT NULL,             -- number of acquisitions
    until     INTEGER NOT NULL              -- end of the lease
) STRICT, WITHOUT ROWID;

-- How long the oldest delivery of a tunnel, or the oldest letter of an external worker, had been
-- waiting: the most in a minute. Kept 8 days.
CREATE TABLE waiting_ages (
    minute    INTEGER NOT NULL,             -- minutes since 1970
    tunnel    TEXT    NOT NULL,             -- id of the tunnel; empty: of a worker
    worker    TEXT    NOT NULL,             -- name of the worker; empty: of a tunnel
    oldest_ms INTEGER NOT NULL,
    PRIMARY KEY (minute, tunnel, worker)
) STRICT, WITHOUT ROWID;

-- Facts about the store itself, which are not copied with it.
CREATE TABLE store_facts (
    name      TEXT    NOT NULL PRIMARY KEY, -- copy: the state of a copy; objects: the remote place of large objects
    value     TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
