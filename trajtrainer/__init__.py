"""trajtrainer: trains Unity ML-Agents behaviours."""
