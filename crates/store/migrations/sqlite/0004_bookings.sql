-- Every letter that a limit lets pass books, so an index by the end of bookings is
-- written as often as the bookings are, and it is only read to forget those that are
-- over. They are found by going through them, now and then.
DROP INDEX bookings_by_end;
