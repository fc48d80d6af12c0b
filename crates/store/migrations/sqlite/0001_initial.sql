-- What a commit writes decides the speed of everything, and a commit writes
-- pages. So rows carry small integers instead of DIDs and hashes, and indexes grow
-- at their end; the three whose keys come in no order are written in bulk, by
-- sqlite/bulk.rs. Times are milliseconds since 1970 by our clock.

-- How many entries there are. Deliveries are those of the TUNNEL_OUTBOX.
CREATE TABLE counts (
    box       TEXT    NOT NULL,
    state     TEXT    NOT NULL,
    entries   INTEGER NOT NULL,
    PRIMARY KEY (box, state)
) STRICT, WITHOUT ROWID;

-- How far the indexes that are written in bulk have come.
CREATE TABLE merged (
    name      TEXT    NOT NULL PRIMARY KEY,
    up_to     INTEGER NOT NULL              -- the last row that is surely in it
) STRICT, WITHOUT ROWID;
INSERT INTO merged (name, up_to) VALUES ('hashes', 0), ('heard', 0), ('timeline', 0);

-- Everybody and everything that has a DID.
CREATE TABLE parties (
    id        INTEGER PRIMARY KEY,
    did       TEXT    NOT NULL UNIQUE,
    level     TEXT,                         -- NULL: no contact of ours
    names     TEXT    NOT NULL DEFAULT '[]',-- JSON array of what people call them
    here      INTEGER NOT NULL DEFAULT 0,   -- reads its mail from an INBOX here, by decision
    has_box   INTEGER NOT NULL DEFAULT 0,   -- something was put into a box of it
    is_group  INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX parties_known ON parties (id) WHERE level IS NOT NULL OR here = 1;
CREATE INDEX parties_groups ON parties (id) WHERE is_group = 1;

CREATE TABLE tunnels (
    party      INTEGER PRIMARY KEY,         -- parties.id of the tunnel's DID
    name       TEXT    NOT NULL UNIQUE,
    provider   TEXT    NOT NULL,
    strangers  TEXT    NOT NULL,
    idempotent INTEGER NOT NULL
) STRICT;

-- How a contact is reached, and whom an endpoint belongs to.
CREATE TABLE bindings (
    contact   INTEGER NOT NULL,             -- parties.id
    tunnel    TEXT    NOT NULL,             -- tunnels.name
    kind      TEXT    NOT NULL,
    address   TEXT    NOT NULL,
    priority  INTEGER NOT NULL,
    PRIMARY KEY (contact, tunnel, kind, address)
) STRICT, WITHOUT ROWID;
CREATE INDEX bindings_by_address ON bindings (tunnel, address, kind);

-- Who does not want to hear from whom.
CREATE TABLE blocks (
    sender    INTEGER NOT NULL,             -- parties.id
    target    INTEGER NOT NULL,             -- parties.id
    PRIMARY KEY (sender, target)
) STRICT, WITHOUT ROWID;

CREATE TABLE subscribers (
    grp       INTEGER NOT NULL,             -- parties.id of the group
    reader    INTEGER NOT NULL,             -- parties.id
    PRIMARY KEY (grp, reader)
) STRICT, WITHOUT ROWID;

-- What was said, once, whoever refers to it. Never changed.
CREATE TABLE objects (
    seq       INTEGER PRIMARY KEY,
    hash      BLOB    NOT NULL,             -- SHA-256 of the canonical text
    kind      TEXT    NOT NULL,             -- cymsg or cymsgr
    body      BLOB                          -- canonical text; NULL: a file named by the hash
) STRICT;

-- Which object has which hash. Written in bulk.
CREATE TABLE hashes (
    hash8     INTEGER NOT NULL,             -- the first eight bytes of the hash
    object    INTEGER NOT NULL,             -- objects.seq
    PRIMARY KEY (hash8, object)
) STRICT, WITHOUT ROWID;

-- Which message an external id of a tunnel became.
CREATE TABLE heard (
    seq         INTEGER PRIMARY KEY,
    tunnel      INTEGER NOT NULL,           -- parties.id
    external_id TEXT    NOT NULL,
    object      INTEGER NOT NULL            -- objects.seq
) STRICT;

-- Which of these has which external id. Written in bulk.
CREATE TABLE heard_by_id (
    hash8     INTEGER NOT NULL,             -- eight bytes of the external id's hash
    heard     INTEGER NOT NULL,             -- heard.seq
    PRIMARY KEY (hash8, heard)
) STRICT, WITHOUT ROWID;

-- Which message a caller's idempotency key stands for.
CREATE TABLE keys (
    key       TEXT    NOT NULL PRIMARY KEY,
    object    INTEGER NOT NULL              -- objects.seq
) STRICT, WITHOUT ROWID;

-- One owner's view of one object in one box.
CREATE TABLE records (
    seq         INTEGER PRIMARY KEY,
    object      INTEGER NOT NULL,           -- objects.seq
    tag         INTEGER NOT NULL,           -- what its id has beyond the object
    owner       INTEGER NOT NULL,           -- parties.id
    box         TEXT    NOT NULL,
    state       TEXT    NOT NULL,
    attempts    INTEGER NOT NULL,
    epoch       INTEGER NOT NULL,
    revision    INTEGER NOT NULL,
    holder      TEXT,                       -- while READING
    lease_until INTEGER,                    -- while READING
    session     INTEGER NOT NULL,           -- parties.id of the other party
    grp         INTEGER,                    -- parties.id of the group it came through
    tunnel      INTEGER,                    -- parties.id of the tunnel it came through
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX records_by_tag ON records (object, tag);
CREATE INDEX records_by_state ON records (owner, box, state, seq);
CREATE INDEX records_leased ON records (lease_until) WHERE state = 'READING';

-- One object on its way to one target through one tunnel.
CREATE TABLE deliveries (
    seq             INTEGER PRIMARY KEY,
    object          INTEGER NOT NULL,       -- objects.seq
    tag             INTEGER NOT NULL,       -- what its id has beyond the object
    tunnel          INTEGER NOT NULL,       -- parties.id
    author          INTEGER NOT NULL,       -- parties.id
    plan            TEXT    NOT NULL,       -- JSON, as it was decided
    state           TEXT    NOT NULL,
    due_at          INTEGER,                -- while WAIT or FAILED
    attempts        INTEGER NOT NULL,
    epoch           INTEGER NOT NULL,
    revision        INTEGER NOT NULL,
    holder          TEXT,                   -- while SENDING
    lease_until     INTEGER,                -- while SENDING
    first_try       INTEGER,
    failure         TEXT,                   -- JSON, while FAILED, DEAD or UNCERTAIN
    external_msg_id TEXT,                   -- once SENT, where the provider gave one
    created_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX deliveries_by_tag ON deliveries (object, tag);
CREATE INDEX deliveries_due ON deliveries (tunnel, due_at, seq) WHERE state IN ('WAIT', 'FAILED');
CREATE INDEX deliveries_by_state ON deliveries (tunnel, state, seq);
CREATE INDEX deliveries_by_external ON deliveries (external_msg_id)
    WHERE external_msg_id IS NOT NULL;
CREATE INDEX deliveries_leased ON deliveries (lease_until) WHERE state = 'SENDING';

-- Conversations: one row for each owner and other party.
CREATE TABLE sessions (
    id        INTEGER PRIMARY KEY,
    owner     INTEGER NOT NULL,             -- parties.id
    peer      INTEGER NOT NULL,             -- parties.id
    last      INTEGER NOT NULL,             -- records.seq of its newest message
    unread    INTEGER NOT NULL              -- how many of them are UNREAD
) STRICT;
CREATE UNIQUE INDEX sessions_by_peer ON sessions (owner, peer);
CREATE INDEX sessions_by_last ON sessions (owner, last);

-- Their messages in both directions, in order. Written in bulk.
CREATE TABLE timeline (
    session   INTEGER NOT NULL,             -- sessions.id
    record    INTEGER NOT NULL,             -- records.seq
    PRIMARY KEY (session, record)
) STRICT, WITHOUT ROWID;

-- How far each reader of a group is with each message.
CREATE TABLE receipts (
    grp       INTEGER NOT NULL,             -- parties.id of the group
    object    INTEGER NOT NULL,             -- objects.seq of the message
    reader    INTEGER NOT NULL,             -- parties.id
    status    TEXT    NOT NULL,
    at        INTEGER NOT NULL,
    receipt   INTEGER NOT NULL,             -- objects.seq of the receipt
    PRIMARY KEY (grp, object, reader)
) STRICT, WITHOUT ROWID;

-- What happened. Only grows at its end.
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
