/* Preloaded: the wall clock of a program is off by as much as the file $CHAOS_CLOCK says, from one moment to the
 * next: an 8-byte integer of nanoseconds. Clocks that only go forward are left alone, and so is a wait: what is to
 * end at a time of the wall clock as the program knows it ends then. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
/* Times on other clocks count from the start of the machine, and are smaller than this. */
#define WALL_FROM_S 1000000000LL

static const volatile int64_t *offset;

__attribute__((constructor)) static void open_clock(void)
{
    const char *path = getenv("CHAOS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED)
        offset = mapped;
    close(file);
}

static int64_t off(void) { return offset ? *offset : 0; }

static void shift(struct timespec *at, int64_t by)
{
    int64_t nanoseconds = at->tv_nsec + by % SECOND;
    at->tv_sec += by / SECOND;
    at->tv_sec += nanoseconds / SECOND;
    nanoseconds %= SECOND;
    if (nanoseconds < 0) {
        nanoseconds += SECOND;
        at->tv_sec -= 1;
    }
    at->tv_nsec = nanoseconds;
}

/* An end that the program gave, as the kernel knows it. */
static const struct timespec *real_end(const struct timespec *given, struct timespec *room)
{
    if (given == NULL || given->tv_sec < WALL_FROM_S)
        return given;
    *room = *given;
    shift(room, -off());
    return room;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*next)(clockid_t, struct timespec *);
    if (next == NULL)
        next = dlsym(RTLD_NEXT, "clock_gettime");
    int result = next(clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        shift(now, off());
    return result;
}

int gettimeofday(struct timeval *now, void *zone)
{
    (void)zone;
    struct timespec exact;
    int result = clock_gettime(CLOCK_REALTIME, &exact);
    if (result == 0) {
        now->tv_sec = exact.tv_sec;
        now->tv_usec = exact.tv_nsec / 1000;
    }
    return result;
}

time_t time(time_t *kept)
{
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (kept != NULL)
        *kept = exact.tv_sec;
    return exact.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *end)
{
    static int (*next)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    struct timespec room;
    if (next == NULL)
        next = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    return next(condition, mutex, real_end(end, &room));
}

int sem_timedwait(sem_t *semaphore, const struct timespec *end)
{
    static int (*next)(sem_t *, const struct timespec *);
    struct timespec room;
    if (next == NULL)
        next = dlsym(RTLD_NEXT, "sem_timedwait");
    return next(semaphore, real_end(end, &room));
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *end, struct timespec *left)
{
    static int (*next)(clockid_t, int, const struct timespec *, struct timespec *);
    struct timespec room;
    if (next == NULL)
        next = dlsym(RTLD_NEXT, "clock_nanosleep");
    int wall = clock == CLOCK_REALTIME && (flags & TIMER_ABSTIME);
    return next(clock, flags, wall ? real_end(end, &room) : end, left);
}

/* Abseil waits by futexes of its own. */
long syscall(long number, ...)
{
    static long (*next)(long, ...);
    long given[6];
    va_list list;
    struct timespec room;
    if (next == NULL)
        next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    va_start(list, number);
    for (int index = 0; index < 6; index++)
        given[index] = va_arg(list, long);
    va_end(list);
    if (number == SYS_futex && (given[1] & FUTEX_CLOCK_REALTIME))
        given[3] = (long)real_end((const struct timespec *)given[3], &room);
    return next(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}
