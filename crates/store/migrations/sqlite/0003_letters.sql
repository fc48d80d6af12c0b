-- Letters on their way through the post office. A step rewrites a letter's row, so
-- that is narrow: what the letter says is in tables of its own, written once.

CREATE TABLE letters (
    seq         INTEGER PRIMARY KEY,
    mark        INTEGER NOT NULL,           -- tells letters of two stores apart
    direction   TEXT    NOT NULL,           -- inbound or outbound
    tunnel      TEXT,                       -- tunnels.name, as far as that is known
    origin      TEXT    NOT NULL,           -- submitted, inbound, dispatch or send
    object      INTEGER,                    -- objects.seq of the message it was made of
    heard       INTEGER,                    -- heard.seq of what was heard
    state       TEXT    NOT NULL,
    desk        TEXT    NOT NULL,           -- the worker outside; '': the dispatcher
    due_at      INTEGER,                    -- while WAITING
    until       INTEGER,                    -- while AWAY
    attempts    INTEGER NOT NULL,           -- how often the worker that has it was tried
    revision    INTEGER NOT NULL,
    kept_by     TEXT,                       -- the worker of ours that keeps it, while WAITING
    keep_key    TEXT,                       -- what that one keeps it under
    failure     TEXT,                       -- why it last failed, was thrown away or given up
    became      INTEGER,                    -- objects.seq of the message it became
    merged_into TEXT,                       -- the letter it is part of, once MERGED
    day         INTEGER,                    -- the day of the hub's life it was DONE, MERGED or TRASHED
    verdicts    TEXT    NOT NULL,           -- JSON array: who had it, and what they said
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL
) STRICT;
CREATE INDEX letters_waiting ON letters (desk, due_at, seq) WHERE state = 'WAITING';
CREATE INDEX letters_away ON letters (desk, until, seq) WHERE state = 'AWAY';
CREATE INDEX letters_kept ON letters (kept_by, keep_key, seq) WHERE kept_by IS NOT NULL;
CREATE INDEX letters_by_state ON letters (state, seq) WHERE state <> 'DONE';
CREATE INDEX letters_ended ON letters (state, day, seq) WHERE day IS NOT NULL;
CREATE INDEX letters_by_object ON letters (object, seq) WHERE object IS NOT NULL;
CREATE INDEX letters_by_heard ON letters (heard) WHERE heard IS NOT NULL;
CREATE INDEX letters_by_became ON letters (became, seq) WHERE became IS NOT NULL;

-- What a letter was made of, beyond its object. No row: nothing beyond it.
CREATE TABLE letter_origins (
    letter    INTEGER PRIMARY KEY,          -- letters.seq
    hash      BLOB,                         -- SHA-256 of the text, when it is a file
    body      TEXT                          -- JSON; NULL: a file named by the hash
) STRICT;

-- Letters as workers left them. No row: as they came.
CREATE TABLE letter_changes (
    letter    INTEGER PRIMARY KEY,          -- letters.seq
    hash      BLOB,                         -- SHA-256 of the text, when it is a file
    body      TEXT                          -- JSON; NULL: a file named by the hash
) STRICT;

-- Which letter a caller's idempotency key stands for.
CREATE TABLE letter_keys (
    key       TEXT    NOT NULL PRIMARY KEY,
    letter    INTEGER NOT NULL,             -- letters.seq
    digest    BLOB    NOT NULL              -- SHA-256 of the letter as it came
) STRICT, WITHOUT ROWID;
CREATE INDEX letter_keys_by_letter ON letter_keys (letter);

-- Up to when keys of limits are booked.
CREATE TABLE bookings (
    key       TEXT    NOT NULL PRIMARY KEY, -- starts with the worker's name and a colon
    booked    INTEGER NOT NULL              -- microseconds since 1970
) STRICT, WITHOUT ROWID;
CREATE INDEX bookings_by_end ON bookings (booked);

-- A letter is not forgotten while somebody waits to hear what became of its draft.
CREATE INDEX drafts_by_object ON drafts (object) WHERE open = 1;
