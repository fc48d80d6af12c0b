-- Differs between two rows of one hash, the first of which was deleted. A courier that stores bytes
-- outside of the database finds out whether another one has deleted them meanwhile.
ALTER TABLE stored_files ADD COLUMN generation BIGINT NOT NULL DEFAULT 0;
