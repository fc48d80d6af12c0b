-- What PostgreSQL has beside the tables of migrations/sqlite/0001_initial.sql, which are created
-- before (src/postgres/dialect.rs).

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

-- Commits of all couriers. A courier that finds a new one reads here what it must know.
CREATE TABLE commits (
    seq       BIGINT NOT NULL PRIMARY KEY,
    numbers   TEXT NOT NULL,                 -- largest numbers of tables with numbered rows
    book      BIGINT NOT NULL                -- the newest commit that changed the address book
);

-- Takes the lock of the writers, and returns the newest commit. This is a query of its own, so that it
-- finds what was committed while the statement around it waited for the lock.
CREATE FUNCTION take_turn() RETURNS SETOF commits LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(1297040201, hashtext(current_schema()));
    RETURN QUERY SELECT seq, numbers, book FROM commits ORDER BY seq DESC LIMIT 1;
END $$;

-- The lock of the writers keeps both unique (src/postgres/batches.rs). Messages are assumed to be
-- new, and the first index rejects those that are not.
-- The hash in two parts, so that no plan scans the index for the second one.
CREATE UNIQUE INDEX objects_by_hash ON objects
    ((('x' || encode(substr(hash, 1, 8), 'hex'))::BIT(64)::BIGINT), substr(hash, 9));
CREATE UNIQUE INDEX external_ids_by_id ON external_ids (tunnel, external_id);

-- Objects by the first eight bytes of their hash, by the index above.
DROP TABLE object_hashes;
CREATE VIEW object_hashes AS
    SELECT ('x' || encode(substr(hash, 1, 8), 'hex'))::BIT(64)::BIGINT AS hash_prefix, seq AS object
      FROM objects;

-- Attachments and large objects, when they are stored in the database.
CREATE TABLE stored_files (
    hash      BYTEA NOT NULL PRIMARY KEY,    -- SHA-256 of the bytes
    bytes     BIGINT NOT NULL,               -- size
    stored_at BIGINT NOT NULL,               -- when it was last stored, by the clock of the server
    -- Differs between two rows of one hash, the first of which was deleted. A courier that stores
    -- bytes outside of the database finds out whether another one has deleted them meanwhile.
    generation BIGINT NOT NULL DEFAULT 0
);

-- Their bytes, in parts of 1 MiB.
CREATE TABLE stored_parts (
    hash      BYTEA NOT NULL,
    part      BIGINT NOT NULL,               -- number of the part, from 0
    bytes     BYTEA NOT NULL,
    PRIMARY KEY (hash, part)
);
ALTER TABLE stored_parts ALTER COLUMN bytes SET STORAGE EXTERNAL;

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
