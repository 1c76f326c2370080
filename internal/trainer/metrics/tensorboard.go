package metrics

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Board is a TensorBoard event file: TFRecords (length, masked CRC-32C of the
// length, data, masked CRC-32C of the data; all little-endian) of tensorflow.Event
// messages with simple values (tensorflow/core/util/event.proto, summary.proto).
type Board struct{ f *os.File }

// boardPrefix starts the name of every event file; TensorBoard looks for
// "tfevents" in it.
const boardPrefix = "events.out.tfevents."

// OpenBoard opens the event file in dir, or starts one whose name carries the
// time, and cuts off what lies behind step keep, or is broken. keep < 0 starts
// anew.
func OpenBoard(dir string, keep int64, at time.Time) (*Board, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("making the TensorBoard folder: %w", err)
	}
	old, err := filepath.Glob(filepath.Join(dir, boardPrefix+"*.fulgur"))
	if err != nil {
		return nil, fmt.Errorf("looking for event files: %w", err)
	}
	path := filepath.Join(dir, fmt.Sprintf("%s%010d.fulgur", boardPrefix, at.Unix()))
	if len(old) > 0 {
		path = old[0]
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the event file: %w", err)
	}
	end, err := keptEvents(f, keep)
	if err == nil {
		err = f.Truncate(end)
	}
	if err == nil {
		_, err = f.Seek(end, io.SeekStart)
	}
	b := &Board{f}
	if err == nil && end == 0 {
		// TensorBoard wants the version of the format first.
		err = b.put(appendString(appendTime(nil, at), 3, "brain.Event:2"))
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("cutting %s back to step %d: %w", path, keep, err)
	}
	return b, nil
}

func keptEvents(r io.Reader, keep int64) (end int64, err error) {
	for keep >= 0 {
		event, err := readRecord(r)
		if errors.Is(err, errNoRecord) {
			return end, nil
		}
		if err != nil {
			return 0, err
		}
		if stepOf(event) > keep {
			return end, nil
		}
		end += int64(len(event)) + 16
	}
	return end, nil
}

// errNoRecord: the end of the file, or a record that was cut off or is broken.
var errNoRecord = errors.New("no whole record")

func readRecord(r io.Reader) ([]byte, error) {
	var head [12]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, noRecord(err)
	}
	n := binary.LittleEndian.Uint64(head[:8])
	if binary.LittleEndian.Uint32(head[8:]) != masked(head[:8]) || n > 1<<30 {
		return nil, errNoRecord
	}
	data := make([]byte, n+4)
	if _, err := io.ReadFull(r, data); err != nil {
		return nil, noRecord(err)
	}
	if binary.LittleEndian.Uint32(data[n:]) != masked(data[:n]) {
		return nil, errNoRecord
	}
	return data[:n], nil
}

func noRecord(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errNoRecord
	}
	return err
}

// stepOf reads field 2 of an Event; 0 if it is absent.
func stepOf(event []byte) int64 {
	for len(event) > 0 {
		num, typ, n := protowire.ConsumeTag(event)
		if n < 0 {
			return math.MaxInt64
		}
		if event = event[n:]; num == 2 && typ == protowire.VarintType {
			v, _ := protowire.ConsumeVarint(event)
			return int64(v)
		}
		if n = protowire.ConsumeFieldValue(num, typ, event); n < 0 {
			return math.MaxInt64
		}
		event = event[n:]
	}
	return 0
}

// Write puts the record's values into one event.
func (b *Board) Write(r Record) error {
	var summary []byte
	for _, name := range slices.Sorted(maps.Keys(r.Values)) {
		value := appendString(nil, 1, name)
		value = protowire.AppendTag(value, 2, protowire.Fixed32Type) // simple_value
		value = protowire.AppendFixed32(value, math.Float32bits(float32(r.Values[name])))
		summary = protowire.AppendTag(summary, 1, protowire.BytesType)
		summary = protowire.AppendBytes(summary, value)
	}
	event := appendTime(nil, r.At)
	event = protowire.AppendTag(event, 2, protowire.VarintType)
	event = protowire.AppendVarint(event, uint64(r.Step))
	event = protowire.AppendTag(event, 5, protowire.BytesType)
	return b.put(protowire.AppendBytes(event, summary))
}

// Close closes the file.
func (b *Board) Close() error { return b.f.Close() }

func (b *Board) put(event []byte) error {
	out := binary.LittleEndian.AppendUint64(make([]byte, 0, len(event)+16), uint64(len(event)))
	out = binary.LittleEndian.AppendUint32(out, masked(out[:8]))
	out = append(out, event...)
	out = binary.LittleEndian.AppendUint32(out, masked(event))
	if _, err := b.f.Write(out); err != nil {
		return fmt.Errorf("writing %s: %w", b.f.Name(), err)
	}
	return nil
}

func appendTime(b []byte, at time.Time) []byte {
	b = protowire.AppendTag(b, 1, protowire.Fixed64Type)
	return protowire.AppendFixed64(b, math.Float64bits(float64(at.UnixMicro())/1e6))
}

func appendString(b []byte, num protowire.Number, s string) []byte {
	b = protowire.AppendTag(b, num, protowire.BytesType)
	return protowire.AppendString(b, s)
}

// masked is TFRecord's masked CRC-32C.
func masked(data []byte) uint32 {
	c := crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))
	return (c>>15 | c<<17) + 0xa282ead8
}
