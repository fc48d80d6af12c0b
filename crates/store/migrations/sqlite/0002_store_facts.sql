-- Facts about the store itself, which are not copied with it.
CREATE TABLE store_facts (
    name      TEXT    NOT NULL PRIMARY KEY, -- copy: the state of a copy; objects: the remote place of large objects
    value     TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
