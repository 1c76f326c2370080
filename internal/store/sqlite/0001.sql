CREATE TABLE runs (
	run TEXT PRIMARY KEY, model TEXT NOT NULL, config BLOB, version INTEGER NOT NULL,
	created INTEGER NOT NULL, updated INTEGER NOT NULL, ended INTEGER, seq INTEGER NOT NULL
) WITHOUT ROWID;

-- The hot part of a rollout is apart from its input: a change of status rewrites its row.
CREATE TABLE rollouts (
	num INTEGER PRIMARY KEY, rollout TEXT NOT NULL, run TEXT NOT NULL, grp TEXT NOT NULL, is_train INTEGER NOT NULL,
	state TEXT NOT NULL, outcome BLOB, reward REAL, reward_by TEXT NOT NULL, last_attempt TEXT NOT NULL,
	error TEXT NOT NULL, job_name TEXT NOT NULL, version INTEGER NOT NULL, seq INTEGER NOT NULL,
	created INTEGER NOT NULL, updated INTEGER NOT NULL, hidden INTEGER NOT NULL
);
CREATE UNIQUE INDEX rollouts_id ON rollouts (rollout) WHERE hidden = 0;
CREATE INDEX rollouts_run ON rollouts (run, num);
CREATE TABLE inputs (num INTEGER PRIMARY KEY, spec BLOB NOT NULL, input BLOB NOT NULL);

CREATE TABLE completions (
	pos INTEGER PRIMARY KEY, num INTEGER NOT NULL, state TEXT NOT NULL, data_id TEXT NOT NULL, is_train INTEGER NOT NULL
);

CREATE TABLE attempts (
	num INTEGER NOT NULL, attempt INTEGER NOT NULL, phase TEXT NOT NULL, runner TEXT NOT NULL, holder TEXT NOT NULL,
	handle TEXT NOT NULL, outcome BLOB, started INTEGER, ended INTEGER, cred BLOB NOT NULL,
	PRIMARY KEY (num, attempt)
) WITHOUT ROWID;
CREATE TABLE credentials (
	sum BLOB PRIMARY KEY, scope TEXT NOT NULL, num INTEGER NOT NULL, attempt TEXT NOT NULL, created INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE calls (
	seq INTEGER PRIMARY KEY, call TEXT NOT NULL UNIQUE, num INTEGER NOT NULL, attempt TEXT NOT NULL, idx INTEGER NOT NULL,
	mode TEXT NOT NULL, status INTEGER NOT NULL, fate TEXT NOT NULL, trainable INTEGER NOT NULL,
	started INTEGER NOT NULL, latency INTEGER NOT NULL, meta BLOB NOT NULL,
	prompt_ids BLOB, sampled_ids BLOB, log_probs BLOB, bodies BLOB NOT NULL
);
CREATE INDEX calls_rollout ON calls (num, seq);
CREATE TABLE events (
	seq INTEGER PRIMARY KEY, num INTEGER NOT NULL, attempt TEXT NOT NULL, type TEXT NOT NULL,
	data BLOB NOT NULL, unused TEXT NOT NULL, at INTEGER NOT NULL
);
CREATE INDEX events_rollout ON events (num, seq);

CREATE TABLE endpoints (
	run TEXT NOT NULL, pos INTEGER NOT NULL, model TEXT NOT NULL, url TEXT NOT NULL, kind TEXT NOT NULL,
	key TEXT NOT NULL, version INTEGER NOT NULL, PRIMARY KEY (run, pos)
) WITHOUT ROWID;
CREATE TABLE leases (
	run TEXT NOT NULL, name TEXT NOT NULL, holder TEXT NOT NULL, expires INTEGER NOT NULL, PRIMARY KEY (run, name)
) WITHOUT ROWID;
