package engineagent

// layoutFinding is what short renderings showed of a model's chat template.
type layoutFinding struct {
	unstable bool // the second turn of a conversation does not go on from the first
}
