/* libebbtide: what must be fast, or shared between processes.
 *
 * Every call that can fail returns an ebb_status (0 is success, errors are negative) and, where `error` is
 * not NULL, fills it with the same code and one sentence that names the file, chunk or field. No call exits,
 * throws over this boundary, or keeps state outside the handles. Handles may be used by several threads at
 * once; a handle must not be destroyed while another thread uses it. Sizes are bytes, times are nanoseconds,
 * unless a name says otherwise. */
#ifndef EBBTIDE_H
#define EBBTIDE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define EBB_API __attribute__((visibility("default")))
#else
#define EBB_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define EBB_ABI_VERSION 2u

typedef enum ebb_status {
  EBB_OK = 0,
  EBB_INVALID_ARGUMENT = -1,
  EBB_NO_MEMORY = -2, /* address space, memory or room on the file system */
  EBB_IO = -3,        /* a system call failed; the message carries errno's text */
  EBB_NOT_FOUND = -4,
  EBB_EXISTS = -5,
  EBB_FOREIGN = -6,   /* not a file of this kind: wrong magic, or not a regular file */
  EBB_WRONG_ABI = -7, /* made by another version of this library */
  EBB_TRUNCATED = -8, /* shorter or longer than its header says */
  EBB_CORRUPT = -9,   /* a checksum does not match */
  EBB_MISMATCH = -10, /* intact, but made for another layout */
  EBB_CANCELLED = -11,
  EBB_BUSY = -12,     /* in use by another call; try again */
  EBB_RELEASED = -13, /* the memory is released: restore it first */
  EBB_FULL = -14,     /* no free gate slot, or no room in the arena */
  EBB_INVALID_STATE = -15,
  EBB_INTERNAL = -16
} ebb_status;

typedef struct ebb_error {
  int32_t code;
  char message[256];
} ebb_error;

EBB_API uint32_t ebb_abi_version(void);
/* The name of a status, "EBB_CORRUPT"; "EBB_UNKNOWN" for anything else. Never NULL. */
EBB_API const char* ebb_status_name(int32_t status);

/* ---- processes
 * ------------------------------------------------------------------------------------------------ */

/* The start time of a live process in clock ticks since boot (/proc/PID/stat, field 22). A zombie is not
 * alive. EBB_NOT_FOUND when there is none. */
EBB_API int32_t ebb_process_start(int32_t pid, uint64_t* ticks, ebb_error* error);

/* ---- checksums and copies
 * ------------------------------------------------------------------------------------- */

/* CRC32C (Castagnoli). Continues from `seed`, the result for the bytes before; 0 at the start. */
EBB_API int32_t ebb_crc32c(const void* data, uint64_t bytes, uint32_t seed, uint32_t* crc, ebb_error* error);
/* 1 when this processor's own instructions are used, 0 for the slow way. */
EBB_API int32_t ebb_crc32c_is_hardware(void);
/* Copies with stores that do not fill the caches, for bytes that nobody reads soon. The ranges must not
 * overlap. */
EBB_API int32_t ebb_copy(void* destination, const void* source, uint64_t bytes, int32_t threads,
                         ebb_error* error);

/* ---- devices
 * -------------------------------------------------------------------------------------------------- */

/* All that differs between devices. `context` is passed back to every function. Functions return an
 * ebb_status and must not throw. Addresses and sizes are multiples of `granule`, except in the two copies. */
typedef struct ebb_device_ops {
  uint32_t abi; /* EBB_ABI_VERSION */
  uint32_t granule;
  const char* name;
  void* context;
  /* Takes address space that is usable at once and takes memory on first touch. */
  int32_t (*reserve)(void* context, uint64_t bytes, void** base);
  int32_t (*unreserve)(void* context, void* base, uint64_t bytes);
  /* Gives the memory back and makes any touch a fault. The addresses stay taken. */
  int32_t (*release)(void* context, void* base, uint64_t bytes);
  /* Makes released addresses usable again; they read as zero. */
  int32_t (*restore)(void* context, void* base, uint64_t bytes);
  /* Gives back the memory of a part that stays usable; it reads as zero. */
  int32_t (*discard)(void* context, void* base, uint64_t bytes);
  /* Takes the memory of a part now. */
  int32_t (*prefault)(void* context, void* base, uint64_t bytes);
  int32_t (*resident)(void* context, const void* base, uint64_t bytes, uint64_t* resident);
  /* `crc` may be NULL; else it is carried on over the bytes copied (CRC32C). */
  int32_t (*copy_in)(void* context, void* device, const void* host, uint64_t bytes, uint32_t* crc);
  int32_t (*copy_out)(void* context, void* host, const void* device, uint64_t bytes);
} ebb_device_ops;

/* This machine's memory: private anonymous pages, huge where the kernel can. Never NULL, valid for ever. */
EBB_API const ebb_device_ops* ebb_host_device(void);

/* ---- arena
 * ---------------------------------------------------------------------------------------------------- */

typedef enum ebb_tag { EBB_TAG_WEIGHTS = 0, EBB_TAG_KV = 1, EBB_TAG_COUNT = 2 } ebb_tag;

typedef struct ebb_arena ebb_arena;

typedef struct ebb_arena_stats {
  uint64_t reserved; /* address space of the tag */
  uint64_t span;     /* end of the highest live block, from the base */
  uint64_t live;     /* bytes in live blocks, as rounded up */
  uint64_t resident; /* bytes of pages in memory, as the kernel sees them */
  uint32_t released; /* 1 between release and restore */
  uint32_t blocks;   /* live blocks */
} ebb_arena_stats;

/* `ops` NULL is the host device. It must outlive the arena. */
EBB_API int32_t ebb_arena_create(const ebb_device_ops* ops, uint64_t reserve_bytes_per_tag, ebb_arena** arena,
                                 ebb_error* error);
EBB_API void ebb_arena_destroy(ebb_arena* arena);
EBB_API int32_t ebb_arena_base(const ebb_arena* arena, int32_t tag, void** base, ebb_error* error);
/* `align` is a power of two up to the device's granule; 64 is the least. Blocks of a granule and more start
 * on one. EBB_FULL without room, EBB_RELEASED between release and restore. */
EBB_API int32_t ebb_arena_allocate(ebb_arena* arena, int32_t tag, uint64_t size, uint64_t align,
                                   void** address, ebb_error* error);
/* Allowed while released. EBB_INVALID_ARGUMENT when no live block starts at `address`. */
EBB_API int32_t ebb_arena_free(ebb_arena* arena, void* address, ebb_error* error);
/* Gives all memory of the tag back; the blocks and their addresses stay. A touch until restore ends the
 * process: it would take memory that someone else owns. Already released is success. EBB_BUSY while a copy
 * runs. */
EBB_API int32_t ebb_arena_release(ebb_arena* arena, int32_t tag, ebb_error* error);
/* Makes the tag usable; its memory reads as zero. Not released is success, and changes nothing. */
EBB_API int32_t ebb_arena_restore(ebb_arena* arena, int32_t tag, int32_t threads, int32_t prefault,
                                  ebb_error* error);
EBB_API int32_t ebb_arena_get_stats(const ebb_arena* arena, int32_t tag, ebb_arena_stats* stats,
                                    ebb_error* error);

/* ---- parked weights
 * ------------------------------------------------------------------------------------------ */

/* A checked copy of a tag's memory, up to its span, in a file. Immutable once it has its name. */
typedef struct ebb_parked ebb_parked;

typedef struct ebb_parked_info {
  uint64_t version;
  uint64_t layout; /* the caller's digest of what lies where */
  uint64_t span;
  uint64_t chunks;     /* of 4 MiB, each with a CRC32C */
  uint64_t file_bytes; /* what it costs */
} ebb_parked_info;

/* Copies the tag's memory in `threads` threads of its own, with `nice` added (0 to 19). The file replaces one
 * of the same name when it is whole; a failure, a cancel or a kill leaves no file. The bytes must not change
 * meanwhile, or the copy is of no single moment. `cancel` may be NULL; set it to nonzero at any time:
 * EBB_CANCELLED soon after. EBB_NO_MEMORY before anything is written when the file system has no room;
 * EBB_RELEASED. */
EBB_API int32_t ebb_parked_create(const char* path, ebb_arena* arena, int32_t tag, uint64_t version,
                                  uint64_t layout, int32_t threads, int32_t nice, const uint32_t* cancel,
                                  ebb_parked** parked, ebb_error* error);
/* Checks everything but the chunks. EBB_NOT_FOUND, EBB_FOREIGN, EBB_WRONG_ABI, EBB_TRUNCATED, EBB_CORRUPT. */
EBB_API int32_t ebb_parked_open(const char* path, ebb_parked** parked, ebb_error* error);
EBB_API void ebb_parked_close(ebb_parked* parked);
EBB_API int32_t ebb_parked_get_info(const ebb_parked* parked, ebb_parked_info* info, ebb_error* error);
/* Checks `sample` chunks spread over the file from a random start, or all for 0. EBB_CORRUPT names the chunk.
 */
EBB_API int32_t ebb_parked_verify(const ebb_parked* parked, uint64_t sample, int32_t threads,
                                  ebb_error* error);
/* `same` 1 when the tag's memory has this span and these checksums. EBB_RELEASED. */
EBB_API int32_t ebb_parked_matches(const ebb_parked* parked, ebb_arena* arena, int32_t tag, int32_t threads,
                                   int32_t* same, ebb_error* error);
/* Fills the tag's memory, released or not. `verify` 0 does not look at the checksums. EBB_MISMATCH when the
 * span differs, EBB_BUSY: nothing was changed. After any other failure the tag is released: never half a
 * copy. */
EBB_API int32_t ebb_parked_restore(const ebb_parked* parked, ebb_arena* arena, int32_t tag, int32_t threads,
                                   int32_t verify, ebb_error* error);

/* ---- ingest
 * --------------------------------------------------------------------------------------------------- */

typedef struct ebb_range {
  uint64_t offset;
  uint64_t length;
} ebb_range;

/* Copies ranges of a file that someone else may be changing to the same places of `destination`, and gives
 * the CRC32C of the bytes that were written, one a range. EBB_TRUNCATED names the range that the source does
 * not have. */
EBB_API int32_t ebb_ingest(int32_t source, int32_t destination, const ebb_range* ranges, uint64_t count,
                           int32_t threads, uint32_t* crcs, ebb_error* error);

/* ---- control page
 * --------------------------------------------------------------------------------------------- */

/* The words of the page; each is read and written whole, in one order for all processes. */
typedef enum ebb_field {
  EBB_F_ADMISSION = 0, /* changed by gate open and close only */
  EBB_F_PHASE = 1,
  EBB_F_RETRY_AFTER_S = 2,
  EBB_F_WEIGHT_VERSION = 3,
  EBB_F_CACHE_EPOCH = 4,
  EBB_F_EPOCH = 5,
  EBB_F_BOOT = 6,
  EBB_F_GRANT = 7,
  EBB_F_KILL = 8,
  EBB_F_LAUNCHER_PID = 9,
  EBB_F_LAUNCHER_START = 10,
  EBB_F_ENGINE_PID = 11,
  EBB_F_ENGINE_START = 12,
  EBB_F_ENGINE_EXITS = 13,
  EBB_F_LAST_EXIT = 14,
  EBB_F_BASELINE = 15,
  EBB_F_MEASURE_REQUEST = 16,
  EBB_F_LAUNCHER_BEAT = 17,
  EBB_F_AGENT_BEAT = 18,
  EBB_F_LAST_REQUEST = 19, /* CLOCK_MONOTONIC in ns: when the last request left, or the gate was opened */
  EBB_F_WAKES = 20,        /* 1: a request that finds the gate closed wakes the member */
  EBB_F_KNOCK = 21,        /* not 0: such a request came */
  EBB_F_HOLD_MS = 22,      /* how long it waits for the gate; 0: it is refused at once */
  EBB_F_COUNT = 23
} ebb_field;

#define EBB_GATE_SLOTS 64u

typedef struct ebb_page ebb_page;
typedef struct ebb_gate ebb_gate;

typedef struct ebb_measurement {
  uint64_t answered; /* the EBB_F_MEASURE_REQUEST it answers */
  uint64_t time_ns;  /* CLOCK_MONOTONIC */
  uint64_t used_bytes;
  uint64_t host_bytes;
  uint64_t processes;
} ebb_measurement;

/* Makes the file whole, then gives it its name: nobody can open half a page. EBB_EXISTS when the name is
 * taken. */
EBB_API int32_t ebb_page_create(const char* path, ebb_page** page, ebb_error* error);
/* EBB_NOT_FOUND, EBB_FOREIGN, EBB_WRONG_ABI, EBB_TRUNCATED. */
EBB_API int32_t ebb_page_open(const char* path, ebb_page** page, ebb_error* error);
EBB_API void ebb_page_close(ebb_page* page);
EBB_API int32_t ebb_page_get(const ebb_page* page, int32_t field, uint64_t* value, ebb_error* error);
EBB_API int32_t ebb_page_set(ebb_page* page, int32_t field, uint64_t value, ebb_error* error);
/* Adds and gives the new value; wraps. */
EBB_API int32_t ebb_page_add(ebb_page* page, int32_t field, uint64_t delta, uint64_t* value,
                             ebb_error* error);
EBB_API int32_t ebb_page_open_gate(ebb_page* page, ebb_error* error);
EBB_API int32_t ebb_page_close_gate(ebb_page* page, ebb_error* error);
/* Requests inside, over all live API processes; slots of dead ones are reclaimed. Once the gate is closed and
 * this was 0, no request is inside until it opens again. */
EBB_API int32_t ebb_page_inflight(ebb_page* page, uint64_t* inflight, ebb_error* error);
/* One writer at a time. A writer that dies midway leaves the measurement before. */
EBB_API int32_t ebb_page_publish(ebb_page* page, const ebb_measurement* measurement, ebb_error* error);
/* EBB_NOT_FOUND before the first one. */
EBB_API int32_t ebb_page_measurement(const ebb_page* page, ebb_measurement* measurement, ebb_error* error);

/* Takes a slot for this process. The page must outlive the gate. EBB_FULL. */
EBB_API int32_t ebb_gate_register(ebb_page* page, ebb_gate** gate, ebb_error* error);
/* `admitted` 1: the request is counted until ebb_gate_leave; 0: the gate is closed and nothing was counted.
 */
EBB_API int32_t ebb_gate_enter(ebb_gate* gate, int32_t* admitted, ebb_error* error);
/* Sets EBB_F_LAST_REQUEST, then counts out. EBB_INVALID_STATE when nothing is inside. */
EBB_API int32_t ebb_gate_leave(ebb_gate* gate, ebb_error* error);
/* Gives the slot back, with all that is still counted in it. */
EBB_API void ebb_gate_close(ebb_gate* gate);

#ifdef __cplusplus
}
#endif

#endif /* EBBTIDE_H */
