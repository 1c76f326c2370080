package schedule

// rowSource hands out the rows of the data, epoch after epoch.
type rowSource struct {
	cfg   *Config
	at    Cursor // of the next row; its Step is not looked at
	epoch int    // which order is of; below 0: none
	order []int
}

// next returns the next row; false when there is none left.
func (r *rowSource) next() (Group, bool) {
	for {
		if r.cfg.Epochs > 0 && r.at.Epoch >= r.cfg.Epochs {
			return Group{}, false
		}
		if r.epoch != r.at.Epoch {
			r.epoch, r.order = r.at.Epoch, r.shuffle(r.at.Epoch)
			if len(r.order) == 0 {
				return Group{}, false
			}
		}
		if r.at.Position < len(r.order) {
			g := Group{Epoch: r.at.Epoch, Row: r.order[r.at.Position]}
			r.at.Position++
			return g, true
		}
		r.at.Epoch, r.at.Position = r.at.Epoch+1, 0
	}
}

func (r *rowSource) shuffle(epoch int) []int {
	if r.cfg.Rows != nil {
		return r.cfg.Rows(epoch)
	}
	return r.cfg.Order.Epoch(epoch)
}

// kept is the order that a state has to keep, nil if it can be made again.
func (r *rowSource) kept() []int {
	if r.cfg.Rows == nil || r.epoch != r.at.Epoch {
		return nil
	}
	return r.order
}
