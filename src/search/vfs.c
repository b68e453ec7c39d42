/* SQLite's file layer for an index: that of the system, with two differences. A short
 * read is an error, because SQLite would read the missing bytes as zeros and give wrong
 * passages. And the file is never mapped, because touching a page of a truncated map
 * would end the process. So a query that needs missing bytes fails, and others are
 * answered. */
#include "search/index_file.h"

#include <pthread.h>
#include <string.h>

#define NAME "kedge-strict"

/* What SQLite sees; the system's file follows it in memory. */
struct strict_file {
    sqlite3_file base;
    sqlite3_file *real;
};

static sqlite3_file *real_of(sqlite3_file *f)
{
    return ((struct strict_file *)(void *)f)->real;
}

static int strict_close(sqlite3_file *f)
{
    return real_of(f)->pMethods->xClose(real_of(f));
}

static int strict_read(sqlite3_file *f, void *to, int n, sqlite3_int64 at)
{
    int code = real_of(f)->pMethods->xRead(real_of(f), to, n, at);

    return code == SQLITE_IOERR_SHORT_READ ? SQLITE_IOERR_READ : code;
}

static int strict_write(sqlite3_file *f, const void *from, int n, sqlite3_int64 at)
{
    (void)f, (void)from, (void)n, (void)at;
    return SQLITE_READONLY;
}

static int strict_truncate(sqlite3_file *f, sqlite3_int64 n)
{
    (void)f, (void)n;
    return SQLITE_READONLY;
}

static int strict_sync(sqlite3_file *f, int flags)
{
    (void)f, (void)flags;
    return SQLITE_OK;
}

static int strict_size(sqlite3_file *f, sqlite3_int64 *n)
{
    return real_of(f)->pMethods->xFileSize(real_of(f), n);
}

static int strict_lock(sqlite3_file *f, int how)
{
    (void)f, (void)how; /* an index never changes in place */
    return SQLITE_OK;
}

static int strict_reserved(sqlite3_file *f, int *taken)
{
    (void)f;
    *taken = 0;
    return SQLITE_OK;
}

static int strict_control(sqlite3_file *f, int op, void *arg)
{
    (void)f, (void)op, (void)arg;
    return SQLITE_NOTFOUND;
}

static int strict_sector(sqlite3_file *f)
{
    return real_of(f)->pMethods->xSectorSize(real_of(f));
}

static int strict_device(sqlite3_file *f)
{
    (void)f;
    return SQLITE_IOCAP_IMMUTABLE;
}

/* Version 1 has no memory maps. */
static const sqlite3_io_methods methods = {
    .iVersion = 1,
    .xClose = strict_close,
    .xRead = strict_read,
    .xWrite = strict_write,
    .xTruncate = strict_truncate,
    .xSync = strict_sync,
    .xFileSize = strict_size,
    .xLock = strict_lock,
    .xUnlock = strict_lock,
    .xCheckReservedLock = strict_reserved,
    .xFileControl = strict_control,
    .xSectorSize = strict_sector,
    .xDeviceCharacteristics = strict_device,
};

static int strict_open(sqlite3_vfs *vfs, const char *name, sqlite3_file *f, int flags,
                       int *out_flags)
{
    struct strict_file *file = (struct strict_file *)(void *)f;
    sqlite3_vfs *system = vfs->pAppData;

    file->real = (sqlite3_file *)(void *)(file + 1);
    memset(file->real, 0, (size_t)system->szOsFile);
    file->base.pMethods = NULL;
    int code = system->xOpen(system, name, file->real, flags, out_flags);
    if (code == SQLITE_OK)
        file->base.pMethods = &methods;
    else if (file->real->pMethods)
        file->real->pMethods->xClose(file->real);
    return code;
}

static sqlite3_vfs strict;
static int registered;

static void register_once(void)
{
    sqlite3_vfs *system = sqlite3_vfs_find(NULL);

    if (!system)
        return;
    strict = *system;
    strict.zName = NAME;
    strict.pNext = NULL;
    strict.pAppData = system;
    strict.szOsFile = (int)sizeof(struct strict_file) + system->szOsFile;
    strict.xOpen = strict_open;
    registered = sqlite3_vfs_register(&strict, 0) == SQLITE_OK;
}

const char *kg_sql_strict(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, register_once);
    return registered ? NAME : NULL;
}
