-- The same tables as in migrations/sqlite; a test compares their columns. Texts are compared by
-- bytes, as SQLite does. Numbers of rows are given by the writer, which holds a lock (batches.rs),
-- so that they follow commits and have no gaps.
-- All times are milliseconds since 1970 in UTC, by the courier's clock.

-- Migrations that are applied.
CREATE TABLE schema_version (
    version        BIGINT NOT NULL PRIMARY KEY,
    oldest_program BIGINT NOT NULL           -- the oldest program that can use this schema
);

-- Batches of commands that are committed. A batch whose commit has an unknown result is found here.
CREATE TABLE batches (
    courier   TEXT COLLATE "C" NOT NULL,
    boot      TEXT COLLATE "C" NOT NULL,     -- differs between two starts of one courier
    n         BIGINT NOT NULL,               -- number of the batch
    PRIMARY KEY (courier, boot, n)
);

-- Commits of all couriers. A courier that finds a new one forgets the rows it knows.
CREATE TABLE commits (
    seq       BIGINT NOT NULL PRIMARY KEY
);

-- Number of rows by kind and state, updated with every commit.
CREATE TABLE counts (
    kind      TEXT COLLATE "C" NOT NULL,     -- a box, or one of the other kinds of sql/counts.rs
    state     TEXT COLLATE "C" NOT NULL,     -- state of the row, or the name of a worker
    entries   BIGINT NOT NULL,
    PRIMARY KEY (kind, state)
);

-- How far each bulk index has been merged into its table.
CREATE TABLE bulk_index_progress (
    name      TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    up_to     BIGINT NOT NULL                -- every row up to this one is in the table
);
INSERT INTO bulk_index_progress (name, up_to)
VALUES ('object_hashes', 0), ('external_ids', 0), ('timeline', 0), ('email_hashes', 0);

-- Every DID that the store has seen: contacts, groups, tunnels, senders, recipients.
CREATE TABLE parties (
    id        BIGINT PRIMARY KEY,
    did       TEXT COLLATE "C" NOT NULL UNIQUE,
    level     TEXT COLLATE "C",              -- contact level; NULL: not a contact
    names     TEXT COLLATE "C" NOT NULL DEFAULT '[]', -- JSON array of display names
    here      BIGINT NOT NULL DEFAULT 0,     -- 1: the operator gave this DID a local INBOX
    has_box   BIGINT NOT NULL DEFAULT 0,     -- 1: there is a record in a box of this DID
    is_group  BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX parties_known ON parties (id) WHERE level IS NOT NULL OR here = 1;
CREATE INDEX parties_groups ON parties (id) WHERE is_group = 1;

-- Names of contacts and groups, kept in step with parties.names.
CREATE TABLE contact_names (
    name      TEXT COLLATE "C" NOT NULL,     -- with ASCII letters in lower case
    party     BIGINT NOT NULL,               -- parties.id
    PRIMARY KEY (name, party)
);
CREATE INDEX contact_names_by_party ON contact_names (party);

CREATE TABLE tunnels (
    party      BIGINT PRIMARY KEY,           -- parties.id of the tunnel's DID
    name       TEXT COLLATE "C" NOT NULL UNIQUE,
    provider   TEXT COLLATE "C" NOT NULL,
    strangers  TEXT COLLATE "C" NOT NULL,    -- policy for messages from strangers
    idempotent BIGINT NOT NULL,              -- 1: the provider accepts idempotency keys
    finds_sent BIGINT NOT NULL,              -- 1: the adapter can look for a sent message
    active     BIGINT NOT NULL DEFAULT 1     -- 0: paused by an operator
);

-- Addresses of contacts at tunnels.
CREATE TABLE bindings (
    contact   BIGINT NOT NULL,               -- parties.id
    tunnel    TEXT COLLATE "C" NOT NULL,     -- tunnels.name
    kind      TEXT COLLATE "C" NOT NULL,     -- kind of the endpoint
    address   TEXT COLLATE "C" NOT NULL,
    priority  BIGINT NOT NULL,               -- the highest is used first
    PRIMARY KEY (contact, tunnel, kind, address)
);
CREATE INDEX bindings_by_address ON bindings (tunnel, address, kind);

-- Senders that a target has blocked.
CREATE TABLE blocks (
    sender    BIGINT NOT NULL,               -- parties.id
    target    BIGINT NOT NULL,               -- parties.id
    PRIMARY KEY (sender, target)
);

-- Readers of groups.
CREATE TABLE subscribers (
    group_id  BIGINT NOT NULL,               -- parties.id
    reader    BIGINT NOT NULL,               -- parties.id
    PRIMARY KEY (group_id, reader)
);

-- Immutable messages and receipts, each stored once.
CREATE TABLE objects (
    seq       BIGINT PRIMARY KEY,
    hash      BYTEA NOT NULL,                -- SHA-256 of the canonical text
    kind      TEXT COLLATE "C" NOT NULL,     -- cymsg or cymsgr
    body      BYTEA,                         -- canonical text; NULL: in a file named by the hash
    erased_at BIGINT,                        -- NULL: it has a text. Otherwise only its hash is left
    superseded_by BIGINT                     -- objects.seq of the rewritten Mail; only when erased
);
CREATE UNIQUE INDEX objects_by_hash ON objects (hash, kind);

-- Files with the bodies of large objects and with attachments. A row is written after the sync
-- of its file.
CREATE TABLE blobs (
    hash      BYTEA NOT NULL PRIMARY KEY,    -- SHA-256 of the bytes, the name of the file
    bytes     BIGINT NOT NULL
);

-- Objects by hash. Written in bulk.
CREATE TABLE object_hashes (
    hash_prefix BIGINT NOT NULL,             -- first eight bytes of the hash
    object      BIGINT NOT NULL,             -- objects.seq
    PRIMARY KEY (hash_prefix, object)
);

-- Provider message ids that were received, and the messages they became.
CREATE TABLE external_ids (
    seq         BIGINT PRIMARY KEY,
    tunnel      BIGINT NOT NULL,             -- parties.id
    external_id TEXT COLLATE "C" NOT NULL,
    object      BIGINT NOT NULL              -- objects.seq; 0: not merged yet, or rejected
);
CREATE UNIQUE INDEX external_ids_by_id ON external_ids (tunnel, external_id);

-- External ids by hash. Written in bulk.
CREATE TABLE external_ids_by_hash (
    hash_prefix BIGINT NOT NULL,             -- first eight bytes of the SHA-256 of the id
    external_id BIGINT NOT NULL,             -- external_ids.seq
    PRIMARY KEY (hash_prefix, external_id)
);

-- Hashes of the bodies of received messages that an id alone does not identify. A message of the
-- same tunnel with the same hash is a duplicate.
CREATE TABLE body_hashes (
    tunnel      BIGINT NOT NULL,             -- parties.id
    hash        BYTEA NOT NULL,              -- SHA-256 of the body
    external_id BIGINT NOT NULL,             -- external_ids.seq of the message
    expires_at  BIGINT,                      -- NULL: never
    PRIMARY KEY (tunnel, hash)
);
CREATE INDEX body_hashes_by_end ON body_hashes (expires_at) WHERE expires_at IS NOT NULL;

-- Idempotency keys of sends.
CREATE TABLE idempotency_keys (
    key       TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    object    BIGINT NOT NULL                -- objects.seq of the message
);

-- One message in one box of one owner.
CREATE TABLE records (
    seq         BIGINT PRIMARY KEY,
    object      BIGINT NOT NULL,             -- objects.seq
    tag         BIGINT NOT NULL,             -- second part of the record id; the first is the hash
    owner       BIGINT NOT NULL,             -- parties.id
    box         TEXT COLLATE "C" NOT NULL,
    state       TEXT COLLATE "C" NOT NULL,
    attempts    BIGINT NOT NULL,             -- number of leases so far
    epoch       BIGINT NOT NULL,             -- number of the last lease
    revision    BIGINT NOT NULL,             -- number of changes
    holder      TEXT COLLATE "C",            -- only in state READING
    lease_until BIGINT,                      -- only in state READING
    session     BIGINT NOT NULL,             -- parties.id of the other party
    group_id    BIGINT,                      -- parties.id of the group it was sent to
    tunnel      BIGINT,                      -- parties.id of the tunnel it came through
    thread_key  TEXT COLLATE "C",            -- thread of the message
    tags        TEXT COLLATE "C",            -- JSON array of the user's tags; NULL: none
    created_at  BIGINT NOT NULL,
    updated_at  BIGINT NOT NULL
);
CREATE UNIQUE INDEX records_by_tag ON records (object, tag);
CREATE INDEX records_by_state ON records (owner, box, state, seq);
CREATE INDEX records_leased ON records (lease_until) WHERE state = 'READING';
-- Only records with a thread or a group have an entry, so that a plain dispatch does not pay.
CREATE INDEX records_by_thread ON records (owner, box, thread_key, seq)
    WHERE thread_key IS NOT NULL;
CREATE INDEX records_by_group ON records (owner, box, group_id, seq) WHERE group_id IS NOT NULL;

-- Records by the user's tags.
CREATE TABLE record_tags (
    owner     BIGINT NOT NULL,               -- parties.id
    box       TEXT COLLATE "C" NOT NULL,
    tag       TEXT COLLATE "C" NOT NULL,
    record    BIGINT NOT NULL,               -- records.seq
    PRIMARY KEY (owner, box, tag, record)
);

-- One message on its way to one target through one tunnel.
CREATE TABLE deliveries (
    seq             BIGINT PRIMARY KEY,
    object          BIGINT NOT NULL,         -- objects.seq
    tag             BIGINT NOT NULL,         -- second part of the delivery id; the first is the hash
    tunnel          BIGINT NOT NULL,         -- parties.id
    author          BIGINT NOT NULL,         -- parties.id
    plan            TEXT COLLATE "C" NOT NULL, -- JSON: the delivery plan, fixed at creation
    target          BIGINT NOT NULL,         -- first eight bytes of the SHA-256 of kind and address
    state           TEXT COLLATE "C" NOT NULL,
    due_at          BIGINT,                  -- only in states WAIT and FAILED
    place           BIGINT,                  -- its place among those of the target: when it became due, or the smallest number. NULL: scheduled or ended
    ready_at        BIGINT,                  -- when it can be leased; NULL: leased, ended or behind another one
    attempts        BIGINT NOT NULL,         -- number of attempts so far
    rate_limited    BIGINT NOT NULL DEFAULT 0, -- number of attempts that a rate limit has ended
    epoch           BIGINT NOT NULL,         -- number of the last lease
    revision        BIGINT NOT NULL,         -- number of changes
    holder          TEXT COLLATE "C",        -- only in state SENDING
    lease_until     BIGINT,                  -- only in state SENDING
    first_try       BIGINT,                  -- time of the first attempt
    outcome_unknown BIGINT NOT NULL,         -- 1: the next attempt looks for the message at the provider
    failure         TEXT COLLATE "C",        -- JSON, only in states FAILED, DEAD and UNCERTAIN
    external_msg_id TEXT COLLATE "C",        -- the provider's message id, only in state SENT
    delivered_at    BIGINT,                  -- only in state SENT
    created_at      BIGINT NOT NULL,
    updated_at      BIGINT NOT NULL
);
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
    delivery        BIGINT NOT NULL,         -- deliveries.seq
    part            BIGINT NOT NULL,         -- number of the part, from 0
    external_msg_id TEXT COLLATE "C",        -- the provider's id of the part
    PRIMARY KEY (delivery, part)
);
CREATE INDEX delivery_parts_by_external ON delivery_parts (external_msg_id)
    WHERE external_msg_id IS NOT NULL;

-- One conversation of an owner with another party.
CREATE TABLE sessions (
    id        BIGINT PRIMARY KEY,
    owner     BIGINT NOT NULL,               -- parties.id
    peer      BIGINT NOT NULL,               -- parties.id
    last      BIGINT NOT NULL,               -- records.seq of the newest message
    unread    BIGINT NOT NULL                -- number of UNREAD messages
);
CREATE UNIQUE INDEX sessions_by_peer ON sessions (owner, peer);
CREATE INDEX sessions_by_last ON sessions (owner, last);

-- Messages of conversations, in both directions. Written in bulk.
CREATE TABLE timeline (
    session   BIGINT NOT NULL,               -- sessions.id
    record    BIGINT NOT NULL,               -- records.seq
    PRIMARY KEY (session, record)
);

-- Read receipts: the status of each group message per reader.
CREATE TABLE receipts (
    group_id  BIGINT NOT NULL,               -- parties.id
    object    BIGINT NOT NULL,               -- objects.seq of the message
    reader    BIGINT NOT NULL,               -- parties.id
    status    TEXT COLLATE "C" NOT NULL,
    at        BIGINT NOT NULL,               -- time of the receipt
    receipt   BIGINT NOT NULL,               -- objects.seq of the receipt
    reason    TEXT COLLATE "C",              -- given by the reader
    PRIMARY KEY (group_id, object, reader)
);

-- The event log, append-only.
CREATE TABLE events (
    seq       BIGINT PRIMARY KEY,
    at        BIGINT NOT NULL,
    kind      TEXT COLLATE "C" NOT NULL,
    object    BIGINT,                        -- objects.seq
    record    TEXT COLLATE "C",              -- rec_ or dlv_ id
    owner     BIGINT,                        -- parties.id
    detail    TEXT COLLATE "C" NOT NULL      -- JSON
);
CREATE INDEX events_by_object ON events (object, seq) WHERE object IS NOT NULL;

-- Open merge windows, usually one per session and thread. A window has times, no content.
CREATE TABLE merge_windows (
    id          BIGINT PRIMARY KEY,
    tunnel      BIGINT NOT NULL,             -- parties.id
    tunnel_name TEXT COLLATE "C" NOT NULL,
    provider    TEXT COLLATE "C" NOT NULL,
    session     TEXT COLLATE "C" NOT NULL,   -- session id and thread key
    held        BIGINT NOT NULL,             -- 1: messages of a stranger that wait for release
    first_at    BIGINT NOT NULL,             -- time of the first message
    last_at     BIGINT NOT NULL,             -- time of the last message
    messages    BIGINT NOT NULL,             -- number of messages
    bytes       BIGINT NOT NULL,             -- size of their JSON
    files       BIGINT NOT NULL,             -- number of their rows in inbound_files
    pending_files BIGINT NOT NULL,           -- number of those that are not fetched yet
    ready_at    BIGINT NOT NULL,             -- when it would be merged without waiting for files
    closes_at   BIGINT NOT NULL,             -- the window is merged at this time
    revision    BIGINT NOT NULL              -- number of changes of stored messages and files
);
CREATE INDEX merge_windows_by_session ON merge_windows (tunnel, session, held, closes_at);
CREATE INDEX merge_windows_by_end ON merge_windows (closes_at);

-- Inbound messages in merge windows. Deleted in the transaction that inserts their Mail. The
-- external id is the key, so that an edit finds its message without another index.
CREATE TABLE inbound_messages (
    external_id  BIGINT PRIMARY KEY,         -- external_ids.seq
    merge_window BIGINT NOT NULL,            -- merge_windows.id
    message      TEXT COLLATE "C" NOT NULL   -- JSON
);
CREATE INDEX inbound_messages_by_window ON inbound_messages (merge_window, external_id);

-- Files that are fetched after their message is stored, until the message is merged.
-- Numbers are never used again: a download that outlives its row must not end another file.
CREATE TABLE inbound_files (
    seq          BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    tunnel       BIGINT NOT NULL,            -- parties.id
    external_id  BIGINT NOT NULL,            -- external_ids.seq of the message
    position     BIGINT NOT NULL,            -- number among its attachments, from 0
    merge_window BIGINT,                     -- merge_windows.id; NULL: the message is a letter
    handle       TEXT COLLATE "C",           -- as the adapter wrote it, can be a secret; NULL: ended
    due_at       BIGINT,                     -- when the next attempt starts; NULL: ended
    attempts     BIGINT NOT NULL,            -- number of failed attempts
    announced_at BIGINT NOT NULL,
    hash         BYTEA,                      -- SHA-256 of the bytes; NULL: not fetched
    bytes        BIGINT,                     -- size, only with a hash
    name         TEXT COLLATE "C",           -- as the provider gave it with the bytes
    mime_type    TEXT COLLATE "C",           -- as the provider gave it with the bytes
    missing      TEXT COLLATE "C"            -- why the last attempt failed
);
CREATE UNIQUE INDEX inbound_files_by_message ON inbound_files (external_id, position);
CREATE INDEX inbound_files_by_window ON inbound_files (merge_window) WHERE merge_window IS NOT NULL;
CREATE INDEX inbound_files_due ON inbound_files (tunnel, due_at, seq) WHERE due_at IS NOT NULL;

-- Messages that were corrected by later messages: each of those messages. The last one is the
-- newest version.
CREATE TABLE corrected_messages (
    external_id  BIGINT NOT NULL,            -- external_ids.seq of the first version
    version      BIGINT NOT NULL,            -- external_ids.seq of a later version
    PRIMARY KEY (external_id, version)
);

-- The newest merged message of each chat, for tunnels that read the history of their provider.
CREATE TABLE chat_positions (
    tunnel       BIGINT NOT NULL,            -- parties.id
    session      TEXT COLLATE "C" NOT NULL,  -- id of the chat
    kind         TEXT COLLATE "C" NOT NULL,  -- kind of the chat
    name         TEXT COLLATE "C",           -- name of the chat; NULL: unknown, or a direct chat
    message_id   TEXT COLLATE "C" NOT NULL,  -- the provider's id
    at           BIGINT,                     -- by the provider's clock
    object       BIGINT NOT NULL,            -- objects.seq of the newest Mail
    PRIMARY KEY (tunnel, session)
);
CREATE INDEX chat_positions_newest ON chat_positions (tunnel, object);

CREATE TABLE mails (
    seq              BIGINT PRIMARY KEY,     -- in the order of visibility
    uid              TEXT COLLATE "C" NOT NULL, -- the Mail's id without the provider
    provider         TEXT COLLATE "C" NOT NULL,
    object           BIGINT NOT NULL,        -- objects.seq
    author           BIGINT NOT NULL,        -- parties.id
    owner            BIGINT NOT NULL,        -- parties.id of the courier's owner
    location         TEXT COLLATE "C" NOT NULL, -- directory that the file belongs in
    change           BIGINT NOT NULL,        -- number of the last change of location
    day              BIGINT NOT NULL,        -- retention day on which the location last changed
    received_at      BIGINT NOT NULL,        -- time of the merge
    entry            TEXT COLLATE "C" NOT NULL -- JSON: the Mail's line in the index
);
CREATE UNIQUE INDEX mails_by_uid ON mails (uid, provider);
CREATE UNIQUE INDEX mails_by_change ON mails (change);
CREATE INDEX mails_by_object ON mails (object);
CREATE INDEX mails_by_provider ON mails (provider, seq);
CREATE INDEX mails_inbound ON mails (day, seq) WHERE location = 'inbound';
CREATE INDEX mails_archived ON mails (day) WHERE location = 'archive';
CREATE INDEX mails_held ON mails (author) WHERE location = 'held';

-- One workspace's claim on one Mail, created when the workspace first claims it.
CREATE TABLE claims (
    id          BIGINT PRIMARY KEY,
    mail        BIGINT NOT NULL,             -- mails.seq
    workspace   TEXT COLLATE "C" NOT NULL,
    state       TEXT COLLATE "C" NOT NULL,
    due_at      BIGINT,                      -- only in state NEW
    holder      TEXT COLLATE "C",            -- only in state CLAIMED
    lease_until BIGINT,                      -- only in state CLAIMED
    attempts    BIGINT NOT NULL,             -- number of leases so far
    epoch       BIGINT NOT NULL,             -- number of the last lease
    revision    BIGINT NOT NULL,             -- number of changes
    reason      TEXT COLLATE "C",            -- reason of the last failure
    updated_at  BIGINT NOT NULL
);
CREATE UNIQUE INDEX claims_by_mail ON claims (mail, workspace);
CREATE INDEX claims_by_state ON claims (workspace, state, mail);
CREATE INDEX claims_leased ON claims (lease_until) WHERE state = 'CLAIMED';
CREATE INDEX claims_dead ON claims (id) WHERE state = 'DEADLETTER';
CREATE INDEX claims_open ON claims (id) WHERE state IN ('NEW', 'CLAIMED');

-- Drafts that were sent from files.
CREATE TABLE drafts (
    uid       TEXT COLLATE "C" NOT NULL PRIMARY KEY, -- name of the file
    provider  TEXT COLLATE "C" NOT NULL,     -- provider directory of the file
    object    BIGINT NOT NULL,               -- objects.seq
    open      BIGINT NOT NULL                -- 1: the result is not reported yet
);
CREATE INDEX drafts_open ON drafts (uid) WHERE open = 1;
CREATE INDEX drafts_by_object ON drafts (object) WHERE open = 1;

-- Single numbers: the progress of the files, and the retention clock.
CREATE TABLE progress (
    name      TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    value     BIGINT NOT NULL
);

-- The last event of each retention day.
CREATE TABLE event_days (
    day       BIGINT PRIMARY KEY,
    event     BIGINT NOT NULL                -- events.seq
);

-- Letters in the pipeline. A step updates the letter's row, so the row is narrow, and the
-- texts are in separate tables.
CREATE TABLE letters (
    seq         BIGINT PRIMARY KEY,
    mark        BIGINT NOT NULL,             -- second part of the letter id; differs between stores
    direction   TEXT COLLATE "C" NOT NULL,   -- inbound or outbound
    tunnel      TEXT COLLATE "C",            -- tunnels.name, when it is known
    source      TEXT COLLATE "C" NOT NULL,   -- submitted, inbound, dispatch or send
    object      BIGINT,                      -- objects.seq of the message it was created from
    external_id BIGINT,                      -- external_ids.seq of the inbound message
    state       TEXT COLLATE "C" NOT NULL,
    worker      TEXT COLLATE "C" NOT NULL,   -- the external worker it waits for; '': the dispatcher
    due_at      BIGINT,                      -- only in state WAITING
    until       BIGINT,                      -- deadline of the external worker, only in state AWAY
    attempts    BIGINT NOT NULL,             -- attempts of the current worker
    revision    BIGINT NOT NULL,             -- number of changes
    held_by     TEXT COLLATE "C",            -- the built-in worker that holds it, only in state WAITING
    hold_key    TEXT COLLATE "C",            -- the key under which that worker holds it
    failure     TEXT COLLATE "C",            -- reason of the last failure, of the trash or of the death
    became      BIGINT,                      -- objects.seq of the message it became
    merged_into TEXT COLLATE "C",            -- id of another letter, only in state MERGED
    day         BIGINT,                      -- retention day on which it became DONE, MERGED or TRASHED
    verdicts    TEXT COLLATE "C" NOT NULL,   -- JSON array, oldest first
    created_at  BIGINT NOT NULL,
    updated_at  BIGINT NOT NULL,
    erased_at   BIGINT                       -- NULL: it has a text. Otherwise its texts are deleted
);
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
    letter    BIGINT PRIMARY KEY,            -- letters.seq
    hash      BYTEA,                         -- SHA-256 of the text, when the text is in a file
    body      TEXT COLLATE "C"               -- JSON; NULL: in a file named by the hash
);

-- Letters as changed by workers. No row: unchanged.
CREATE TABLE letter_changes (
    letter    BIGINT PRIMARY KEY,            -- letters.seq
    hash      BYTEA,                         -- SHA-256 of the text, when the text is in a file
    body      TEXT COLLATE "C"               -- JSON; NULL: in a file named by the hash
);

-- Idempotency keys of submitted letters.
CREATE TABLE letter_keys (
    key       TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    letter    BIGINT NOT NULL,               -- letters.seq
    digest    BYTEA NOT NULL                 -- SHA-256 of the submitted letter
);
CREATE INDEX letter_keys_by_letter ON letter_keys (letter);

-- The DIDs of a person whose text is being erased. Deleted when the erasure is complete.
CREATE TABLE erasures (
    did       TEXT COLLATE "C" NOT NULL PRIMARY KEY
);

-- Attachments and large texts of erased messages, until their files are removed.
CREATE TABLE erased_files (
    hash      BYTEA NOT NULL PRIMARY KEY     -- SHA-256 of the bytes, the name of the file
);

-- Files of purged mails and letters, until it is known whether something else refers to them.
CREATE TABLE purged_files (
    hash      BYTEA NOT NULL PRIMARY KEY     -- SHA-256 of the bytes, the name of the file
);

-- Ends of rate limit reservations. No index on the end: every letter that passes a rate limit
-- writes here, and expired rows are found by a scan now and then.
CREATE TABLE reservations (
    key            TEXT COLLATE "C" NOT NULL PRIMARY KEY, -- starts with the worker's name and a colon
    reserved_until BIGINT NOT NULL           -- microseconds since 1970
);

-- Where the next page of a stream of a tunnel starts, such as a mail folder.
CREATE TABLE stream_cursors (
    tunnel    BIGINT NOT NULL,               -- parties.id
    stream    TEXT COLLATE "C" NOT NULL,     -- name of the folder
    cursor    TEXT COLLATE "C" NOT NULL,     -- as the adapter wrote it
    PRIMARY KEY (tunnel, stream)
);

-- Watched e-mail accounts. Servers and passwords are in the configuration.
CREATE TABLE email_accounts (
    tunnel          BIGINT PRIMARY KEY,      -- parties.id
    address         TEXT COLLATE "C" NOT NULL,
    description     TEXT COLLATE "C",
    last_scanned_at BIGINT,                  -- end of the last round
    last_scan       TEXT COLLATE "C",        -- JSON: what the last round did
    created_at      BIGINT NOT NULL,
    updated_at      BIGINT NOT NULL
);

-- Folders of accounts. A folder whose UIDVALIDITY changes gets another row.
CREATE TABLE email_folders (
    id           BIGINT PRIMARY KEY,
    tunnel       BIGINT NOT NULL,            -- parties.id
    name         TEXT COLLATE "C" NOT NULL,
    uid_validity BIGINT NOT NULL
);
CREATE UNIQUE INDEX email_folders_by_name ON email_folders (tunnel, name, uid_validity);

-- One task per mail of a folder.
CREATE TABLE email_tasks (
    seq           BIGINT PRIMARY KEY,
    tunnel        BIGINT NOT NULL,           -- parties.id
    folder        BIGINT NOT NULL,           -- email_folders.id
    uid           BIGINT NOT NULL,
    subject       TEXT COLLATE "C" NOT NULL,
    sent_at       BIGINT,                    -- date in the header of the mail
    internal_date BIGINT,                    -- when the server received the mail
    bytes         BIGINT NOT NULL,           -- size of the whole mail
    cut           TEXT COLLATE "C",          -- why only the header is stored
    copy_of       BIGINT,                    -- seq of the task with the same bytes; it can be purged
    status        TEXT COLLATE "C" NOT NULL,
    due_at        BIGINT,                    -- received, error: when it is started; with a holder: end of the lease
    holder        TEXT COLLATE "C",          -- only in status in_progress, until the forward is posted
    attempts      BIGINT NOT NULL,           -- attempts since the last retry by an operator
    epoch         BIGINT NOT NULL,           -- number of the last lease
    revision      BIGINT NOT NULL,           -- number of changes
    forward       BIGINT,                    -- objects.seq of the message that forwards the mail
    error         TEXT COLLATE "C",          -- reason of the status skipped_no_match or error
    dropped       BIGINT NOT NULL,           -- 1: an operator dropped the error
    day           BIGINT,                    -- retention day on which it ended
    created_at    BIGINT NOT NULL,
    updated_at    BIGINT NOT NULL
);
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
    task      BIGINT PRIMARY KEY,            -- email_tasks.seq
    raw       BYTEA                          -- bytes of the mail; NULL: in a file named by the hash
);

-- Hashes of all mails that were registered. A row stays when its task is purged, so that a mail
-- that appears again is recognised.
CREATE TABLE email_hashes (
    task      BIGINT PRIMARY KEY,            -- email_tasks.seq
    tunnel    BIGINT NOT NULL,               -- parties.id
    hash      BYTEA NOT NULL                 -- SHA-256 of the stored bytes
);

-- Hashes of mails by their beginning. Written in bulk.
CREATE TABLE email_tasks_by_hash (
    hash_prefix BIGINT NOT NULL,             -- first eight bytes of the hash
    task        BIGINT NOT NULL,             -- email_hashes.task
    PRIMARY KEY (hash_prefix, task)
);

-- The directory of people, in the order of the import.
CREATE TABLE people (
    seq       BIGINT PRIMARY KEY,
    person    TEXT COLLATE "C" NOT NULL      -- JSON
);

-- Random keys of this store.
CREATE TABLE secrets (
    name      TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    value     BYTEA NOT NULL
);

-- Rows that change often: room for new versions on the same page, and early removal of old ones.
ALTER TABLE parties SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE records SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE deliveries SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE sessions SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE merge_windows SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE claims SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE letters SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE counts SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE progress SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE email_tasks SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE batches SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE commits SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
