package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"os"
	"path/filepath"

	"github.com/fulgur-rl/fulgur"
)

// OpenRead opens an existing file for reading; see store.Keeper.
func (d *Driver) OpenRead(ctx context.Context) (*sql.DB, error) {
	op := "open store " + d.path
	if st, err := os.Stat(d.path); d.path == Memory || err != nil || st.IsDir() {
		return nil, fulgur.E(fulgur.KindNotFound, op, "there is no store at "+d.path+": name its file with --store sqlite:PATH, or its run's folder with --run", nil)
	}
	p := readPragmas()
	p.Set("mode", "rw") // the log's index may have to be made
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: d.path}).EscapedPath()+"?"+p.Encode())
	if err == nil {
		_, err = db.ExecContext(ctx, "SELECT count(*) FROM sqlite_schema")
		if err != nil {
			err = errors.Join(d.openError(op, err), db.Close())
		}
	}
	return db, err
}

// Integrity returns the findings of SQLite's integrity_check.
func (d *Driver) Integrity(ctx context.Context, db *sql.DB) (found []string, err error) {
	rows, err := db.QueryContext(ctx, "PRAGMA integrity_check(50)")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return nil, err
		}
		if s != "ok" {
			found = append(found, s)
		}
	}
	return found, rows.Err()
}

// Backup copies the file as it is at this moment, by VACUUM INTO. The copy has
// its name only when it is whole and on the disk.
func (d *Driver) Backup(ctx context.Context, db *sql.DB, path string) (err error) {
	op := "back up " + d.path
	if _, err := os.Lstat(path); err == nil {
		return fulgur.E(fulgur.KindConflict, op, path+" is there already: name a new file", nil)
	}
	part := path + ".part"
	// It holds the keys of endpoints: for its owner alone.
	f, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return fulgur.E(fulgur.KindConflict, op, part+" is there: another backup is being written, or was cut off; remove it", err)
	}
	if err != nil {
		return fulgur.E(fulgur.KindInvalid, op, "the copy cannot be written: check its folder", err)
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			_ = os.Remove(part)
		}
	}()
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.ExecContext(ctx, "PRAGMA query_only(0)"); err != nil {
		return err
	}
	if _, err := conn.ExecContext(ctx, "VACUUM INTO ?", part); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Link(part, path); err != nil { // a rename would replace what came meanwhile
		return fulgur.E(fulgur.KindConflict, op, path+" cannot be named: is it there already?", err)
	}
	_ = os.Remove(part)
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Vacuum rewrites the file without what was deleted, and empties the log.
func (d *Driver) Vacuum(ctx context.Context, conn *sql.Conn) error {
	for _, q := range []string{"VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"} {
		if _, err := conn.ExecContext(ctx, q); err != nil {
			return err
		}
	}
	return nil
}
