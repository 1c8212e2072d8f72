//! Faults, injected into real servers.
