-- Files that attempts leave. Their bytes come in parts; parts of no artifact are of an upload that was cut off.
CREATE TABLE artifacts (
	num INTEGER NOT NULL, attempt TEXT NOT NULL, name TEXT NOT NULL, upload TEXT NOT NULL, size INTEGER NOT NULL,
	sum BLOB NOT NULL, reader BLOB NOT NULL, created INTEGER NOT NULL, PRIMARY KEY (num, attempt, name)
) WITHOUT ROWID;
CREATE TABLE artifact_parts (upload TEXT NOT NULL, part INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (upload, part));
