-- Files that attempts leave. Their bytes come in parts; parts of no artifact are of an upload that was cut off.
CREATE TABLE artifacts (
	num BIGINT NOT NULL, attempt TEXT NOT NULL, name TEXT NOT NULL, upload TEXT NOT NULL, size BIGINT NOT NULL,
	sum BYTEA NOT NULL, reader BYTEA NOT NULL, created BIGINT NOT NULL, PRIMARY KEY (num, attempt, name)
);
CREATE TABLE artifact_parts (upload TEXT NOT NULL, part BIGINT NOT NULL, data BYTEA NOT NULL, PRIMARY KEY (upload, part));
ALTER TABLE artifact_parts ALTER data SET STORAGE EXTERNAL;
