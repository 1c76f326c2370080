package store

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"

	"github.com/fulgur-rl/fulgur"
)

const (
	partSize     = 512 << 10 // bytes of an artifact in one write: others come between
	maxArtifacts = 16        // of one attempt
)

var artifactName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// artifactWrites is what a batch does to artifacts.
type artifactWrites struct {
	parts []artifactPart
	put   []artifactRow
	gone  []string // uploads
}

func (w *artifactWrites) len() int { return len(w.parts) + len(w.put) + len(w.gone) }

type artifactPart struct {
	upload string
	part   int
	data   []byte
}

type artifactRow struct {
	fulgur.Artifact
	num     int64
	attempt fulgur.AttemptID
	upload  string
	sum     []byte
	reader  []byte // hash of a secret that may read it; empty: none may
}

// PutArtifact keeps a file of an attempt that has not ended, once. The body is
// written as it comes, in parts; it is there when all of it is on record, or not at
// all. Together an attempt's may have at most most bytes, with what is coming in, and two may come
// in at a time (math.MaxInt64: any). A secret of its own, reader, may read
// it ("": none). created is false for what is there already, byte for byte.
//
// KindConflict: another of that name is there. KindTooLarge: it is more than most, or there
// are too many. KindUnavailable: others that are coming in have the room. KindGone: the attempt
// has ended. KindNotFound: there is no such attempt.
func (s *Store) PutArtifact(ctx context.Context, key fulgur.AttemptKey, name, reader string, body io.Reader, most int64) (out fulgur.Artifact, created bool, err error) {
	const op = "keep an artifact"
	if !artifactName.MatchString(name) {
		return out, false, fulgur.E(fulgur.KindInvalid, op, fmt.Sprintf("%.80q is no artifact's name: want small letters, digits, '.', '_' and '-', at most 64", name), nil)
	}
	row := artifactRow{attempt: key.Attempt, upload: rand.Text(), Artifact: fulgur.Artifact{Name: name}}
	if reader != "" {
		sum := sha256.Sum256([]byte(reader))
		row.reader = sum[:]
	}
	s.removeUploads(ctx, op)
	known := false
	err = s.do(ctx, op, func(b *batch) error { // before a byte is read
		_, held, err := b.artifactsOf(op, key)
		known = slices.ContainsFunc(held, func(r artifactRow) bool { return r.Name == name })
		return err
	})
	if err != nil {
		return out, false, err
	}
	up, err := s.uploads.begin(op, key, row.upload, most)
	if err != nil {
		return out, false, err
	}
	if err = s.upload(ctx, op, up, &row, body, most, known); err == nil {
		out, created, err = s.putUploaded(ctx, op, key, row, most, known)
	}
	if created {
		s.uploads.forget(up)
	} else {
		s.removeUploads(ctx, op, up)
	}
	return out, created, err
}

// putUploaded makes an artifact of what was uploaded, if it is none yet.
func (s *Store) putUploaded(ctx context.Context, op string, key fulgur.AttemptKey, row artifactRow, most int64, known bool) (out fulgur.Artifact, created bool, err error) {
	err = s.do(ctx, op, func(b *batch) error {
		out, created = fulgur.Artifact{}, false
		num, held, err := b.artifactsOf(op, key)
		if err != nil {
			return err
		}
		total := row.Size
		for i := range held {
			if held[i].Name == row.Name {
				if !bytes.Equal(held[i].sum, row.sum) {
					return fulgur.E(fulgur.KindConflict, op, fmt.Sprintf("attempt %s of rollout %s has another artifact %s: it is written once", key.Attempt, key.Rollout, row.Name), nil)
				}
				out = held[i].Artifact
				return nil
			}
			total += held[i].Size
		}
		if known {
			return fulgur.E(fulgur.KindUnavailable, op, "it was removed meanwhile: try again", nil)
		}
		if total > most || len(held) >= maxArtifacts {
			return tooLarge(op, most)
		}
		row.num, row.CreatedAt = num, b.now
		b.artifacts.put = append(b.artifacts.put, row)
		out, created = row.Artifact, true
		return nil
	})
	if err != nil {
		return fulgur.Artifact{}, false, err
	}
	return out, created, nil
}

func tooLarge(op string, most int64) error {
	if most < 0 {
		return fulgur.E(fulgur.KindTooLarge, op, "this server takes no artifacts of attempts", nil)
	}
	return fulgur.E(fulgur.KindTooLarge, op, fmt.Sprintf("an attempt's artifacts may have %d bytes together, and be %d", most, maxArtifacts), nil)
}

// upload writes a body's parts, unless it is known already, and notes its size and hash.
func (s *Store) upload(ctx context.Context, op string, up *upload, row *artifactRow, body io.Reader, most int64, known bool) error {
	sum := sha256.New()
	for part := 0; ; part++ {
		buf := make([]byte, partSize)
		n, err := fill(body, buf)
		if err != nil && err != io.EOF {
			var fe *fulgur.Error
			switch {
			case errors.As(err, &fe):
				return err
			case errors.Is(err, os.ErrDeadlineExceeded):
				return fulgur.E(fulgur.KindTimeout, op, "the rest of the body did not come in time: try again", err)
			}
			return fulgur.E(fulgur.KindInvalid, op, "the body broke off: "+err.Error(), err)
		}
		if row.Size += int64(n); row.Size > most {
			return tooLarge(op, most)
		}
		sum.Write(buf[:n])
		if n > 0 && !known {
			if err := s.do(ctx, op, func(b *batch) error { return b.putPart(op, up, row, most, artifactPart{row.upload, part, buf[:n]}) }); err != nil {
				return err
			}
		}
		if err != nil {
			row.sum = sum.Sum(nil)
			row.SHA256 = hex.EncodeToString(row.sum)
			return nil
		}
	}
}

// putPart writes a part of what its attempt may still have.
func (b *batch) putPart(op string, up *upload, row *artifactRow, most int64, p artifactPart) error {
	_, held, err := b.artifactsOf(op, up.key)
	if err != nil {
		return err
	}
	room, same := most, false
	for i := range held {
		room -= held[i].Size
		same = same || held[i].Name == row.Name
	}
	switch {
	case row.Size > room && same:
		return fulgur.E(fulgur.KindUnavailable, op, "it came from elsewhere meanwhile: try again", nil)
	case row.Size > room:
		return tooLarge(op, most)
	}
	if err := b.s.uploads.grow(op, up, row.Size, room); err != nil {
		return err
	}
	b.artifacts.parts = append(b.artifacts.parts, p)
	return nil
}

// fill reads until buf is full or the body ends. (io.ReadFull's error of a short last part
// is that of a body which was cut off.)
func fill(body io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var k int
		k, err = body.Read(buf[n:])
		n += k
	}
	return n, err
}

// artifactsOf returns a rollout's key and what an attempt has, that may be given more.
func (b *batch) artifactsOf(op string, key fulgur.AttemptKey) (int64, []artifactRow, error) {
	e, err := b.get(op, key.Rollout)
	if err != nil {
		return 0, nil, err
	}
	a := e.find(key.Attempt)
	switch {
	case a == nil:
		return 0, nil, unknownAttempt(op, key.Rollout, key.Attempt)
	case a.Phase == fulgur.PhaseEnded || e.State.Terminal():
		return 0, nil, fulgur.E(fulgur.KindGone, op, fmt.Sprintf("attempt %s of rollout %s has ended", key.Attempt, key.Rollout), nil)
	}
	rows, err := b.s.sql.conn.QueryContext(context.Background(), b.s.driver.Rebind(artifactColumns+` WHERE num = ? AND attempt = ? ORDER BY name`), e.num, string(key.Attempt))
	if err != nil {
		return 0, nil, b.s.fail(op, err)
	}
	held, err := scanArtifacts(rows)
	for i := range b.artifacts.put {
		if r := &b.artifacts.put[i]; r.num == e.num && r.attempt == key.Attempt {
			held = append(held, *r)
		}
	}
	return e.num, held, b.s.fail(op, err)
}

const artifactColumns = `SELECT name, upload, size, sum, reader, created FROM artifacts`

func scanArtifacts(rows *sql.Rows) (out []artifactRow, err error) {
	defer rows.Close()
	for rows.Next() {
		var r artifactRow
		var created int64
		if err := rows.Scan(&r.Name, &r.upload, &r.Size, &r.sum, &r.reader, &created); err != nil {
			return nil, err
		}
		r.SHA256, r.CreatedAt = hex.EncodeToString(r.sum), fromMicros(created)
		out = append(out, r)
	}
	return out, rows.Err()
}

// artifacts reads what an attempt has, of that name ("": all).
func (s *Store) artifacts(ctx context.Context, op string, key fulgur.AttemptKey, name string) ([]artifactRow, error) {
	num, err := s.number(ctx, op, key.Rollout)
	if err != nil {
		return nil, err
	}
	rows, err := s.read.QueryContext(ctx, s.driver.Rebind(artifactColumns+` WHERE num = ? AND attempt = ? AND (? = '' OR name = ?) ORDER BY name`), num, string(key.Attempt), name, name)
	if err != nil {
		return nil, s.fail(op, err)
	}
	out, err := scanArtifacts(rows)
	return out, s.fail(op, err)
}

// Artifacts lists what an attempt has left, by name.
func (s *Store) Artifacts(ctx context.Context, key fulgur.AttemptKey) ([]fulgur.Artifact, error) {
	rows, err := s.artifacts(ctx, "list artifacts", key, "")
	if err != nil {
		return nil, err
	}
	out := make([]fulgur.Artifact, len(rows))
	for i := range rows {
		out[i] = rows[i].Artifact
	}
	return out, nil
}

func (s *Store) artifact(ctx context.Context, op string, key fulgur.AttemptKey, name string) (artifactRow, error) {
	rows, err := s.artifacts(ctx, op, key, name)
	if err == nil && (len(rows) == 0 || name == "") {
		err = fulgur.E(fulgur.KindNotFound, op, fmt.Sprintf("attempt %s of rollout %s has no artifact %q", key.Attempt, key.Rollout, name), nil)
	}
	if err != nil {
		return artifactRow{}, err
	}
	return rows[0], nil
}

// Artifact opens what an attempt has left under a name, for reading. What was removed
// while it was read ends in an error.
func (s *Store) Artifact(ctx context.Context, key fulgur.AttemptKey, name string) (fulgur.Artifact, io.ReadCloser, error) {
	row, err := s.artifact(ctx, "read an artifact", key, name)
	if err != nil {
		return fulgur.Artifact{}, nil, err
	}
	return row.Artifact, &artifactReader{ctx: ctx, s: s, row: row}, nil
}

// MayReadArtifact says whether a secret is the one that an artifact was kept with.
func (s *Store) MayReadArtifact(ctx context.Context, key fulgur.AttemptKey, name, secret string) bool {
	row, err := s.artifact(ctx, "read an artifact", key, name)
	sum := sha256.Sum256([]byte(secret))
	return err == nil && subtle.ConstantTimeCompare(row.reader, sum[:]) == 1
}

// artifactReader reads an artifact part by part.
type artifactReader struct {
	ctx  context.Context
	s    *Store
	row  artifactRow
	part int
	data []byte
	read int64
}

func (r *artifactReader) Read(p []byte) (int, error) {
	for len(r.data) == 0 {
		if r.read == r.row.Size {
			return 0, io.EOF
		}
		err := r.s.read.QueryRowContext(r.ctx, r.s.driver.Rebind(`SELECT data FROM artifact_parts WHERE upload = ? AND part = ?`), r.row.upload, r.part).Scan(&r.data)
		if errors.Is(err, sql.ErrNoRows) {
			return 0, fulgur.E(fulgur.KindNotFound, "read an artifact", "it was removed while it was read", nil)
		}
		if err != nil {
			return 0, r.s.fail("read an artifact", err)
		}
		r.part++
		r.read += int64(len(r.data))
	}
	n := copy(p, r.data)
	r.data = r.data[n:]
	return n, nil
}

func (r *artifactReader) Close() error { return nil }

// DeleteArtifact removes what an attempt has left under a name; nothing there is no error.
func (s *Store) DeleteArtifact(ctx context.Context, key fulgur.AttemptKey, name string) error {
	const op = "delete an artifact"
	row, err := s.artifact(ctx, op, key, name)
	if fulgur.KindOf(err) == fulgur.KindNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	return s.do(ctx, op, func(b *batch) error {
		b.artifacts.gone = append(b.artifacts.gone, row.upload)
		return nil
	})
}

// flushArtifacts writes what a batch does to artifacts. All of it may be written
// twice: of a batch that changes no position nobody knows, after a connection was
// lost, whether it was.
func (st *statements) flushArtifacts(b *batch) error {
	for _, p := range b.artifacts.parts {
		if err := st.insertPart.exec(p.upload, p.part, p.data); err != nil {
			return err
		}
	}
	for i := range b.artifacts.put {
		r := &b.artifacts.put[i]
		reader := r.reader
		if reader == nil {
			reader = []byte{}
		}
		if err := st.putArtifact.exec(r.num, string(r.attempt), r.Name, r.upload, r.Size, r.sum, reader, micros(r.CreatedAt)); err != nil {
			return err
		}
	}
	for _, upload := range b.artifacts.gone {
		for _, q := range []*writing{st.dropUpload, st.dropArtifact} {
			if err := q.exec(upload); err != nil {
				return err
			}
		}
	}
	return nil
}

// clearUploads removes what is left of uploads that a death cut off.
func (st *statements) clearUploads(ctx context.Context) error {
	_, err := st.conn.ExecContext(ctx, `DELETE FROM artifact_parts WHERE upload NOT IN (SELECT upload FROM artifacts)`)
	return err
}
