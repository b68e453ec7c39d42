/* The smallest memory limit from a process's own control group up to the root.
 *
 * A line of /proc/self/cgroup is NUMBER:CONTROLLERS:PATH. Version 2 has one line,
 * without controllers; version 1 has one per hierarchy, and the line with `memory`
 * counts. In a container, PATH may belong to the machine outside, and its folders may be
 * missing: then only the root is read.
 */
#include "base/cgroup.h"

#include "base/file.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* The limit in a group's file; UINT64_MAX: none ("max"), or no such file. */
static uint64_t limit_in(const char *path)
{
    unsigned long long bytes;
    FILE *f = fopen(path, "re");
    uint64_t limit = UINT64_MAX;

    if (f && fscanf(f, "%llu", &bytes) == 1)
        limit = bytes;
    if (f)
        fclose(f);
    return limit;
}

/* The smallest limit of a group and the groups above it.   group: path below root, "" or
 * with a leading "/"; name: the file of a group that has its limit */
static uint64_t limit_up(const char *root, const char *group, const char *name)
{
    uint64_t limit = limit_in(kg_path_in(root, name).text);
    struct kg_path own;
    char *end;

    snprintf(own.text, sizeof own.text, "%s", group);
    while ((end = strrchr(own.text, '/'))) {
        const struct kg_path folder = kg_path_in(root, own.text + 1);

        limit = least(limit, limit_in(kg_path_in(folder.text, name).text));
        *end = '\0';
    }
    return limit;
}

/* Whether "cpu,memory" has memory. */
static bool has_memory(const char *controllers)
{
    static const char name[] = "memory";

    for (size_t n; *controllers; controllers += n + (controllers[n] == ',')) {
        n = strcspn(controllers, ",");
        if (n == strlen(name) && strncmp(controllers, name, n) == 0)
            return true;
    }
    return false;
}

struct roots {
    const char *v2, *v1;
};

static uint64_t limit_of(const struct roots *r, const char *controllers,
                         const char *group)
{
    if (*controllers == '\0')
        return limit_up(r->v2, group, "memory.max");
    if (has_memory(controllers))
        return limit_up(r->v1, group, "memory.limit_in_bytes");
    return UINT64_MAX;
}

/* line: overwritten */
static uint64_t limit_of_line(const struct roots *r, char *line)
{
    char *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : NULL;

    line[strcspn(line, "\n")] = '\0';
    if (!group)
        return UINT64_MAX;
    *group = '\0';
    return limit_of(r, controllers + 1, group + 1);
}

uint64_t kg_cgroup_memory(const char *groups, const char *root)
{
    const struct kg_path v1 = kg_path_in(root, "memory");
    const struct roots r = {root, v1.text};
    uint64_t limit = least(limit_of(&r, "", ""), limit_of(&r, "memory", ""));
    char line[8192];
    FILE *f = fopen(groups, "re");

    if (!f)
        return limit;
    while (fgets(line, sizeof line, f))
        limit = least(limit, limit_of_line(&r, line));
    fclose(f);
    return limit;
}

uint64_t kg_cgroup_machine_bytes(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    uint64_t bytes, limit;

    if (pages <= 0 || page <= 0)
        return 0;
    bytes = (uint64_t)pages * (uint64_t)page;
    limit = kg_cgroup_memory("/proc/self/cgroup", "/sys/fs/cgroup");
    return limit < bytes ? limit : bytes;
}
