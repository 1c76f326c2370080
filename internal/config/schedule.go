package config

// schedule checks when rollouts run beside updates, and how old they may get.
func (c *checker) schedule() {
	s, o := c.f.Schedule, c.f.OffPolicy
	if s.Mode == "synchronous" {
		for _, key := range []string{"schedule.active", "schedule.refill", "schedule.straggler", "off_policy.mean_staleness", "off_policy.max_staleness"} {
			c.noEffect(key, "with schedule.mode synchronous, which trains on the newest policy only")
		}
		return
	}
	switch {
	case s.Active != 0 && s.Active < 1:
		c.fail("schedule.active", "below 1 no step would ever be full: want at least 1, or 0 for what off_policy.mean_staleness allows")
	case s.Active == 0 && s.Refill == "completion":
		c.fail("schedule.refill", "completion needs schedule.active: a mean staleness is held by refilling on updates")
	case s.Active > float64(o.MaxStaleness+1):
		c.warn("schedule.active", "never more than off_policy.max_staleness + 1 = %d: no more could train within it", o.MaxStaleness+1)
	}
	if o.MaxStaleness == 0 {
		c.fail("off_policy.max_staleness", "with 0 nothing is older than a step: want schedule.mode synchronous")
	}
	if o.MeanStaleness > float64(o.MaxStaleness) {
		c.fail("off_policy.mean_staleness", "a mean of %g is above the largest, off_policy.max_staleness %d", o.MeanStaleness, o.MaxStaleness)
	}
	if s.Active != 0 {
		c.noEffect("off_policy.mean_staleness", "with schedule.active, which sets the number of groups itself")
	}
	if st := s.Straggler; st.Done > 0 && st.Factor == 0 {
		c.warn("schedule.straggler.done", "has no effect without schedule.straggler.factor")
	} else if st.Factor > 0 {
		c.warn("schedule.straggler", "closes groups without their longest rollouts: what is learned favours short ones")
	}
}
