/* libnvidia-ml.so.1 for machines without a GPU: the symbols that nvidia-ml-py asks for, with their real
 * names, versions and structures, answering from a text file that a test rewrites at any time.
 *
 * The file is FAKE_NVML_STATE, else `state` beside this library, else /run/fake-nvml/state:
 *     driver 570.86.15
 *     gpu UUID KEY=VALUE ...      one for each GPU, in the order of their indices
 *     event SERIAL UUID TYPE DATA an event (TYPE in hex) for event sets that are older than it
 *     fail SYMBOL CODE            this call returns CODE
 *     hang SYMBOL                 this call returns when the line is gone (`*`: every call)
 *     crash SYMBOL                this call ends the process by SIGSEGV
 * Keys: name (_ for blanks) memory used reserved (by the driver) pci numa temp power util ecc_vol ecc_agg
 * remap_pending remap_failed recovery mig throttle error (code of every call about it) peers=UUID,... procs=PID:BYTES,...
 * A file of UUIDs at FAKE_NVML_VISIBLE, else /run/fake-nvml-visible/uuids, leaves the other GPUs out, as a
 * container does. As with the real library the list of GPUs is that of nvmlInit.
 *
 * With OLD_NVML it is one of an old driver, which lacks most of what came after 2017.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <libgen.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SUCCESS 0
#define UNINITIALIZED 1
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define INSUFFICIENT_SIZE 7
#define DRIVER_NOT_LOADED 9
#define TIMEOUT 10
#define GPU_IS_LOST 15
#define MAX_GPUS 32

typedef int Return;
typedef struct { char uuid[96]; } Device;
typedef struct { char bus_legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } NewerMemory;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned pid; unsigned long long bytes; unsigned gpu_instance, compute_instance; } Process;
typedef union { double d; unsigned ui; unsigned long ul; unsigned long long ull; } Value;
typedef struct {
    uint32_t field, scope;
    int64_t timestamp, latency;
    int type;
    Return result;
    Value value;
} FieldValue;
typedef struct {
    Device *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} EventData;
typedef struct { long last; int count; Device *devices[MAX_GPUS]; unsigned long long types[MAX_GPUS]; } EventSet;

static Device devices[MAX_GPUS];
static int device_count = -1;

static const char *state_path(void) {
    static char path[4096];
    if (path[0]) return path;
    const char *told = getenv("FAKE_NVML_STATE");
    Dl_info info;
    if (told) {
        snprintf(path, sizeof path, "%s", told);
    } else if (dladdr((void *)state_path, &info) && info.dli_fname) {
        char copy[3072];
        snprintf(copy, sizeof copy, "%s", info.dli_fname);
        snprintf(path, sizeof path, "%s/state", dirname(copy));
        if (access(path, R_OK) != 0) snprintf(path, sizeof path, "/run/fake-nvml/state");
    }
    return path;
}

static char *slurp(const char *path) {
    FILE *file = fopen(path, "r");
    if (!file) return NULL;
    char *text = calloc(1, 1 << 16);
    size_t size = fread(text, 1, (1 << 16) - 1, file);
    text[size] = 0;
    fclose(file);
    return text;
}

/* The rest of the first line that begins with these words; the caller frees it. */
static char *find_line(const char *words) {
    char *text = slurp(state_path()), *found = NULL;
    if (!text) return NULL;
    char *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        size_t length = strlen(words);
        if (!strncmp(line, words, length) && (line[length] == ' ' || !line[length])) {
            found = strdup(line + length + (line[length] == ' '));
            break;
        }
    }
    free(text);
    return found;
}

static int scripted(const char *what, const char *symbol) {
    char words[160];
    snprintf(words, sizeof words, "%s %s", what, symbol);
    char *line = find_line(words);
    if (!line) {
        snprintf(words, sizeof words, "%s *", what);
        line = find_line(words);
    }
    int code = line ? (*line ? atoi(line) : 1) : 0;
    free(line);
    return code;
}

static void nap(void) {
    struct timespec pause = {0, 5 * 1000 * 1000};
    nanosleep(&pause, NULL);
}

static Return enter(const char *symbol) {
    while (scripted("hang", symbol)) nap();
    if (scripted("crash", symbol)) raise(SIGSEGV);
    return scripted("fail", symbol);
}

static int visible(const char *uuid) {
    const char *path = getenv("FAKE_NVML_VISIBLE");
    char *text = slurp(path ? path : "/run/fake-nvml-visible/uuids");
    if (!text) return 1;
    int found = strstr(text, uuid) != NULL;
    free(text);
    return found;
}

/* A GPU's line; the caller frees it. */
static char *gpu_line(const Device *device) {
    char words[128];
    snprintf(words, sizeof words, "gpu %s", device->uuid);
    return find_line(words);
}

static int value_of(const char *line, const char *key, char *value, size_t size) {
    char wanted[64];
    snprintf(wanted, sizeof wanted, "%s=", key);
    for (const char *at = line; (at = strstr(at, wanted)); at++) {
        if (at == line || at[-1] == ' ') {
            at += strlen(wanted);
            size_t length = strcspn(at, " ");
            snprintf(value, size, "%.*s", (int)length, at);
            return 1;
        }
    }
    return 0;
}

/* Look a key up in a GPU's line; what the line lacks this GPU does not support. */
static Return text(const char *symbol, Device *device, const char *key, char *value, size_t size) {
    Return code = enter(symbol);
    if (code) return code;
    if (device_count < 0) return UNINITIALIZED;
    char *line = gpu_line(device);
    if (!line || !visible(device->uuid)) {
        free(line);
        return GPU_IS_LOST;
    }
    char error[16];
    if (value_of(line, "error", error, sizeof error) && atoi(error)) code = atoi(error);
    else code = key && !value_of(line, key, value, size) ? NOT_SUPPORTED : SUCCESS;
    free(line);
    return code;
}

static Return number(const char *symbol, Device *device, const char *key, unsigned long long *value) {
    char found[32];
    Return code = text(symbol, device, key, found, sizeof found);
    if (!code) *value = strtoull(found, NULL, 0);
    return code;
}

static Return small(const char *symbol, Device *device, const char *key, unsigned *value) {
    unsigned long long wide = 0;
    Return code = number(symbol, device, key, &wide);
    if (!code) *value = (unsigned)wide;
    return code;
}

static Return copy_text(Return code, const char *from, char *to, unsigned size) {
    if (code) return code;
    if (strlen(from) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return SUCCESS;
}

Return nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    Return code = enter("nvmlInitWithFlags");
    if (code) return code;
    char *state = slurp(state_path()), *save = NULL;
    if (!state) return DRIVER_NOT_LOADED;
    device_count = 0;
    for (char *line = strtok_r(state, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char uuid[96];
        if (sscanf(line, "gpu %95s", uuid) == 1 && device_count < MAX_GPUS && visible(uuid))
            strcpy(devices[device_count++].uuid, uuid);
    }
    free(state);
    return SUCCESS;
}

Return nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
Return nvmlShutdown(void) { device_count = -1; return enter("nvmlShutdown"); }

const char *nvmlErrorString(Return code) {
    static char text[32];
    snprintf(text, sizeof text, "Error %d", code);
    return text;
}

Return nvmlSystemGetDriverVersion(char *version, unsigned size) {
    Return code = enter("nvmlSystemGetDriverVersion");
    char *line = find_line("driver");
    code = copy_text(code, line ? line : "0", version, size);
    free(line);
    return code;
}

Return nvmlDeviceGetCount_v2(unsigned *count) {
    Return code = enter("nvmlDeviceGetCount_v2");
    if (code) return code;
    if (device_count < 0) return UNINITIALIZED;
    *count = (unsigned)device_count;
    return SUCCESS;
}

Return nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    Return code = enter("nvmlDeviceGetHandleByIndex_v2");
    if (code) return code;
    if (device_count < 0) return UNINITIALIZED;
    if (index >= (unsigned)device_count) return INVALID_ARGUMENT;
    *device = &devices[index];
    return SUCCESS;
}

Return nvmlDeviceGetHandleByUUID(const char *uuid, Device **device) {
    Return code = enter("nvmlDeviceGetHandleByUUID");
    if (code) return code;
    if (device_count < 0) return UNINITIALIZED;
    for (int index = 0; index < device_count; index++)
        if (!strcmp(devices[index].uuid, uuid)) {
            *device = &devices[index];
            return text("nvmlDeviceGetHandleByUUID", *device, NULL, NULL, 0);
        }
    return NOT_FOUND;
}

Return nvmlDeviceGetUUID(Device *device, char *uuid, unsigned size) {
    /* Known since nvmlInit, so also of a GPU that is lost. */
    return copy_text(enter("nvmlDeviceGetUUID"), device->uuid, uuid, size);
}

Return nvmlDeviceGetName(Device *device, char *name, unsigned size) {
    char found[96];
    Return code = text("nvmlDeviceGetName", device, "name", found, sizeof found);
    for (char *at = found; !code && *at; at++)
        if (*at == '_') *at = ' ';
    return copy_text(code, found, name, size);
}

Return nvmlDeviceGetPciInfo_v3(Device *device, Pci *pci) {
    char found[32];
    Return code = text("nvmlDeviceGetPciInfo_v3", device, "pci", found, sizeof found);
    if (code) return code;
    memset(pci, 0, sizeof *pci);
    sscanf(found, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
    snprintf(pci->bus_legacy, 16, "%04X:%02X:%02X.0", pci->domain & 0xffff, pci->bus & 0xff, pci->device & 0xff);
    return SUCCESS;
}

Return nvmlDeviceGetMemoryInfo(Device *device, Memory *memory) {
    Return code = number("nvmlDeviceGetMemoryInfo", device, "memory", &memory->total);
    if (code) return code;
    unsigned long long reserved = 0;
    if (number("nvmlDeviceGetMemoryInfo", device, "used", &memory->used)) memory->used = 0;
    if (!number("nvmlDeviceGetMemoryInfo", device, "reserved", &reserved)) memory->used += reserved;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

Return nvmlDeviceGetTemperature(Device *device, unsigned sensor, unsigned *degrees) {
    (void)sensor;
    return small("nvmlDeviceGetTemperature", device, "temp", degrees);
}

Return nvmlDeviceGetPowerUsage(Device *device, unsigned *milliwatts) {
    return small("nvmlDeviceGetPowerUsage", device, "power", milliwatts);
}

Return nvmlDeviceGetUtilizationRates(Device *device, Utilization *rates) {
    rates->memory = 0;
    return small("nvmlDeviceGetUtilizationRates", device, "util", &rates->gpu);
}

Return nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, unsigned long long *reasons) {
    return number("nvmlDeviceGetCurrentClocksThrottleReasons", device, "throttle", reasons);
}

Return nvmlDeviceGetTotalEccErrors(Device *device, unsigned kind, unsigned counter, unsigned long long *count) {
    if (kind != 1) { /* corrected ones */
        *count = 0;
        return text("nvmlDeviceGetTotalEccErrors", device, NULL, NULL, 0);
    }
    return number("nvmlDeviceGetTotalEccErrors", device, counter ? "ecc_agg" : "ecc_vol", count);
}

#ifndef OLD_NVML
Return nvmlDeviceGetMemoryInfo_v2(Device *device, NewerMemory *memory) {
    const char *symbol = "nvmlDeviceGetMemoryInfo_v2";
    Return code = number(symbol, device, "memory", &memory->total);
    if (code) return code;
    if (number(symbol, device, "used", &memory->used)) memory->used = 0;
    if (number(symbol, device, "reserved", &memory->reserved)) memory->reserved = 0;
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}

Return nvmlDeviceGetNumaNodeId(Device *device, int *node) {
    return small("nvmlDeviceGetNumaNodeId", device, "numa", (unsigned *)node);
}

Return nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
    Return code = small("nvmlDeviceGetMigMode", device, "mig", current);
    *pending = *current;
    return code;
}

Return nvmlDeviceGetP2PStatus(Device *device, Device *other, unsigned how, unsigned *status) {
    char all[2048] = "";
    Return code = text("nvmlDeviceGetP2PStatus", device, "peers", all, sizeof all);
    *status = !code && how == 2 && strstr(all, other->uuid) ? 0 : 5;
    return code == NOT_SUPPORTED ? SUCCESS : code;
}

Return nvmlDeviceGetRemappedRows(Device *device, unsigned *cor, unsigned *unc, unsigned *pending, unsigned *failed) {
    *cor = *unc = *failed = 0;
    Return code = small("nvmlDeviceGetRemappedRows", device, "remap_pending", pending);
    return code ? code : small("nvmlDeviceGetRemappedRows", device, "remap_failed", failed);
}

Return nvmlDeviceGetComputeRunningProcesses_v3(Device *device, unsigned *count, Process *processes) {
    char all[4096] = "", *save = NULL;
    Return code = text("nvmlDeviceGetComputeRunningProcesses_v3", device, "procs", all, sizeof all);
    if (code && code != NOT_SUPPORTED) return code;
    unsigned room = *count, found = 0;
    for (char *each = strtok_r(all, ",", &save); each; each = strtok_r(NULL, ",", &save), found++)
        if (found < room) {
            Process process = {0, 0, ~0u, ~0u};
            sscanf(each, "%u:%llu", &process.pid, &process.bytes);
            processes[found] = process;
        }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

Return nvmlDeviceGetFieldValues(Device *device, int count, FieldValue *values) {
    Return code = text("nvmlDeviceGetFieldValues", device, NULL, NULL, 0);
    for (int index = 0; !code && index < count; index++) {
        values[index].type = 1;
        values[index].result = values[index].field != 230
            ? NOT_SUPPORTED
            : small("nvmlDeviceGetFieldValues", device, "recovery", &values[index].value.ui);
    }
    return code;
}

/* Events. */

static long next_event(EventSet *set, EventData *data) {
    char *state = slurp(state_path()), *save = NULL;
    long newest = 0;
    for (char *line = state ? strtok_r(state, "\n", &save) : NULL; line; line = strtok_r(NULL, "\n", &save)) {
        char uuid[96];
        long serial;
        unsigned long long type, value;
        if (sscanf(line, "event %ld %95s %llx %llu", &serial, uuid, &type, &value) != 4) continue;
        if (serial > newest) newest = serial;
        if (!data || serial <= set->last) continue;
        for (int index = 0; index < set->count; index++)
            if (!strcmp(set->devices[index]->uuid, uuid) && (set->types[index] & type)) {
                *data = (EventData){set->devices[index], type, value, ~0u, ~0u};
                free(state);
                return serial;
            }
    }
    free(state);
    return data ? 0 : newest;
}

Return nvmlEventSetCreate(EventSet **set) {
    Return code = enter("nvmlEventSetCreate");
    if (code) return code;
    *set = calloc(1, sizeof **set);
    (*set)->last = next_event(*set, NULL);
    return SUCCESS;
}

Return nvmlEventSetFree(EventSet *set) {
    free(set);
    return enter("nvmlEventSetFree");
}

Return nvmlDeviceGetSupportedEventTypes(Device *device, unsigned long long *types) {
    *types = 0xffff;
    return text("nvmlDeviceGetSupportedEventTypes", device, NULL, NULL, 0);
}

Return nvmlDeviceRegisterEvents(Device *device, unsigned long long types, EventSet *set) {
    Return code = text("nvmlDeviceRegisterEvents", device, NULL, NULL, 0);
    if (code) return code;
    set->devices[set->count] = device;
    set->types[set->count++] = types;
    return SUCCESS;
}

Return nvmlEventSetWait_v2(EventSet *set, EventData *data, unsigned timeout_ms) {
    Return code = enter("nvmlEventSetWait_v2");
    if (code) return code;
    for (unsigned waited = 0;; waited += 5) {
        long serial = next_event(set, data);
        if (serial) {
            set->last = serial;
            return SUCCESS;
        }
        if (waited >= timeout_ms) return TIMEOUT;
        nap();
    }
}
#endif
