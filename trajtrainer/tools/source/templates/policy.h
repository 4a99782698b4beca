/*
<<comment>>
 */

#ifndef <<macro>>_H
#define <<macro>>_H

#include <math.h>
#include <string.h>

#define <<macro>>_SENSORS <<program.sensors | length>>
#define <<macro>>_CONTINUOUS <<program.continuous_size>>
#define <<macro>>_DISCRETE <<program.branches | length>>
#define <<macro>>_MASK <<program.branches | sum>>
#define <<macro>>_MEMORY <<program.memory_size>>
#define <<macro>>_RANDOM <<program.random_size>>

/* Memory for intermediate results. Each thread that decides needs its own workspace. */
typedef struct {
  float values[<<[1, program.workspace_size] | max>>];
} <<name>>_workspace;

<<tables>>

static inline float <<name>>_max(float a, float b) { return a > b ? a : b; }
static inline float <<name>>_min(float a, float b) { return a < b ? a : b; }

/*
 * Decides for several agents at once.
 *
 * observations   one array per sensor
 * mask           action mask, or NULL to allow all actions
 * memory         memory of each agent, which is updated; NULL if the policy has no memory
 * random         random numbers, or NULL if deterministic
 * deterministic  take the most likely action instead of sampling one
 * continuous     receives <<program.continuous_size>> per agent
 * discrete       receives <<program.branches | length>> per agent
 */
static inline void <<name>>_decide(<<name>>_workspace *workspace, int agents, const float *const observations[],
                                 const float *mask, float *memory, const float *random, int deterministic,
                                 float *continuous, int *discrete) {
  float *const work = workspace->values;
<<code>>

/* Drops the oldest of an agent's stacked frames and appends the newest one. Start an episode with zeros. */
static inline void <<name>>_stack(float *stacked, int size, const float *frame, int frame_size) {
  memmove(stacked, stacked + frame_size, (size_t)(size - frame_size) * sizeof(float));
  memcpy(stacked + size - frame_size, frame, (size_t)frame_size * sizeof(float));
}

#endif
