package conformancetest

var raceRules []rule
