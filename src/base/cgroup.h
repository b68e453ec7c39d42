/* Memory limits from Linux control groups.
 *
 * A limit applies to a whole subtree, so a process gets the minimum over its group and
 * all groups above it: the container, the service (MemoryMax=), the job.
 */
#ifndef KG_BASE_CGROUP_H
#define KG_BASE_CGROUP_H

#include <stdint.h>

/* Memory limit in bytes; UINT64_MAX if there is none or it is unknown.
 * groups: the file that lists the groups of the process, /proc/self/cgroup; root: the
 * mount point, /sys/fs/cgroup, version 1 or 2 */
uint64_t kg_cgroup_memory(const char *groups, const char *root);
/* Bytes of memory that this process may use: the machine's memory or the limit of its
 * control groups, whichever is smaller; 0 if unknown. */
uint64_t kg_cgroup_machine_bytes(void);

#endif
