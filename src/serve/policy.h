/* The current policy as an endpoint for environments that others wrote (episode.env
 * external).
 *
 * During a rollout kedge serves the policy on the loopback, under a key that is made for
 * the run. kedge sends every episode as JSON: a line to a program that it starts, or a
 * request to the user's server. Either plays the episode by requests to the episode's own
 * URL, and reports the reward in a line or in its response. Trajectories contain the
 * sampled ids, never ids of text that the program sends back.
 *
 * Branches: a request whose prompt begins with all ids of a branch continues that branch;
 * any other begins a new one. A draw depends on (group, sample, branch, position). So if
 * the program is a function of its input, the bits of a run depend neither on the
 * program's concurrency nor on threads, batches or a resume.
 */
#ifndef KG_SERVE_POLICY_H
#define KG_SERVE_POLICY_H

#include "rollout/episode.h"

extern const struct kg_episode_host kg_policy_host;

#endif
