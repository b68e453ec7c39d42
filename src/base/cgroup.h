/* What the control groups of Linux let a process have.
 *
 * A limit binds all that is below it, so a process has the least of those of its group
 * and of every group above: of a container, of a service (MemoryMax=), of a job.
 */
#ifndef KG_BASE_CGROUP_H
#define KG_BASE_CGROUP_H

#include <stdint.h>

/* Bytes of memory; UINT64_MAX where nothing limits them or nobody knows.
 * groups: the file that names the groups of the process, /proc/self/cgroup; root: the
 * folder where they are mounted, /sys/fs/cgroup, of either version */
uint64_t kg_cgroup_memory(const char *groups, const char *root);

#endif
