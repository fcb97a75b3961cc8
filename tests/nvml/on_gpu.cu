// A job's program for a real GPU: `on_gpu DEED GIB` holds so much of its memory, and makes a step each 50 ms.
// After 60 steps its first attempt does the deed. It writes to the file $WITNESS when it does what.
#include <cassert>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <unistd.h>

__global__ void work(float *value) { value[threadIdx.x] += 1; }
__global__ void write_to(volatile char *address) { *(volatile int *)address = 1; }
__global__ void expect(bool holds) { assert(holds); }
__global__ void spin(volatile int *go) {
    while (*go == 0) {}
}

static void note(const char *what) {
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    FILE *file = fopen(getenv("WITNESS"), "a");
    fprintf(file, "%ld.%06ld %s\n", now.tv_sec, now.tv_nsec / 1000, what);
    fclose(file);
}

static void check(cudaError_t error) {
    if (error == cudaSuccess) return;
    printf("CUDA says: %s\n", cudaGetErrorString(error));
    fflush(stdout);
    exit(1);
}

int main(int, char **words) {
    const char *deed = words[1];
    bool first = !strcmp(getenv("TFSUP_RESTART_COUNT"), "0");
    note("start");
    char *held;
    float *value;
    check(cudaMalloc(&held, strtoull(words[2], nullptr, 10) << 30));
    check(cudaMalloc(&value, 4096));
    check(cudaMemset(value, 0, 4096));
    printf("sees %s\n", getenv("CUDA_VISIBLE_DEVICES"));
    for (int step = 1;; step++) {
        work<<<1, 32>>>(value);
        check(cudaDeviceSynchronize());
        printf("step %d\n", step);
        fflush(stdout);
        if (step == 1) note("step");
        usleep(50 * 1000);
        if (step != 60 || !first) continue;
        note("deed");
        if (!strcmp(deed, "page_fault")) write_to<<<1, 1>>>((char *)0xdead00000000);
        if (!strcmp(deed, "misaligned")) write_to<<<1, 1>>>((char *)value + 1);
        if (!strcmp(deed, "assert")) expect<<<1, 1>>>(false);
        if (!strcmp(deed, "spin")) spin<<<1, 1>>>((int *)value + 32);
        if (!strcmp(deed, "out_of_memory")) check(cudaMalloc(&held, 1ull << 40));
        if (!strcmp(deed, "killed")) raise(SIGKILL);
        if (!strcmp(deed, "stopped")) raise(SIGSTOP);
        check(cudaDeviceSynchronize());
    }
}
