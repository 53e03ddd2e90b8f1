#include "park.h"

#include <sys/random.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "abi.h"
#include "buffer.h"
#include "crc32c.h"
#include "fanout.h"

namespace ebb {

namespace {

void check_room(int fd, uint64_t bytes, const std::string& path) {
  struct statvfs room = {};
  if (::fstatvfs(fd, &room) != 0) fail_errno("cannot stat the file system of " + path);
  const uint64_t free = uint64_t{room.f_bavail} * room.f_frsize;
  if (room.f_blocks == 0 || free >= bytes) return;  // no blocks: a tmpfs without a limit
  fail(EBB_NO_MEMORY,
       path + " needs " + std::to_string(bytes) + " bytes, its file system has " + std::to_string(free));
}

void check_cancel(const uint32_t* cancel) {
  if (cancel != nullptr && __atomic_load_n(cancel, __ATOMIC_ACQUIRE) != 0)
    fail(EBB_CANCELLED, "it was cancelled");
}

void copy_out(const Region& region, void* host, uint64_t offset, uint64_t bytes) {
  const ebb_device_ops& device = region.device();
  check_device(device.copy_out(device.context, host, region.base() + offset, bytes), device.name, "copy out");
}

void copy_in(const Region& region, uint64_t offset, const char* host, uint64_t bytes, uint32_t* crc) {
  const ebb_device_ops& device = region.device();
  check_device(device.copy_in(device.context, region.base() + offset, host, bytes, crc), device.name,
               "copy in");
}

// The checksum is of a private copy of the bytes, and that copy is what is written: they match whatever
// happens.
uint32_t park_chunk(const Region& region, const ParkFile& park, int fd, uint64_t chunk,
                    const uint32_t* cancel) {
  Buffer buffer;
  uint32_t crc = 0;
  for (const Piece piece : Pieces(park.chunk_length(chunk))) {
    check_cancel(cancel);
    copy_out(region, buffer.data(), chunk * kChunk + piece.offset, piece.length);
    crc = crc32c(buffer.data(), piece.length, crc);
    write_at(fd, buffer.data(), piece.length, park.chunk_place(chunk) + piece.offset, park.path);
  }
  park.map.populate(park.chunk_place(chunk), park.chunk_length(chunk));
  return crc;
}

void read_piece(const ParkFile& park, Buffer& buffer, uint64_t chunk, const Piece& piece) {
  const uint64_t place = park.chunk_place(chunk) + piece.offset;
  if (read_at(park.file.fd(), buffer.data(), piece.length, place, park.path) == piece.length) return;
  fail(EBB_TRUNCATED, park.path + " ends within chunk " + std::to_string(chunk));
}

uint64_t random_below(uint64_t limit) {
  uint64_t number = 0;
  if (::getrandom(&number, sizeof number, GRND_NONBLOCK) != sizeof number)
    return 0;  // a start like any other
  return number % limit;
}

}  // namespace

Parked Parked::create(const std::string& path, Region& region, const ParkOrder& order) {
  const Region::Hold hold(region, Region::Use::kRead);
  ParkFile park{path, File(), park_header(order.version, order.layout, hold.span()), {}, {}};
  park.table.resize(park.header.chunks);
  Unborn unborn(path);
  check_room(unborn.fd(), park.file_bytes(), path);
  if (::ftruncate(unborn.fd(), static_cast<off_t>(park.file_bytes())) != 0) fail_errno("cannot size " + path);
  park.map = Mapping::of_memory_file(unborn.fd(), park.file_bytes());
  Counter chunks(park.header.chunks);
  fan_out_nice(order.threads, order.nice, chunks, [&](uint64_t chunk) {
    park.table[chunk] = park_chunk(region, park, unborn.fd(), chunk, order.cancel);
  });
  check_cancel(order.cancel);
  write_park_head(unborn.fd(), park);
  park.file = unborn.publish(true);
  return Parked(std::move(park));
}

Parked Parked::open(const std::string& path) { return Parked(open_park_file(path)); }

ebb_parked_info Parked::info() const noexcept {
  const ParkHeader& header = park_.header;
  return {header.version, header.layout, header.span, header.chunks, park_.file_bytes()};
}

void Parked::check(uint64_t chunk, uint32_t crc) const {
  if (crc == park_.table[chunk]) return;
  fail(EBB_CORRUPT, park_.path + ": chunk " + std::to_string(chunk) + " of " +
                        std::to_string(park_.header.chunks) + " does not match its checksum");
}

void Parked::verify_chunk(uint64_t chunk) const {
  Buffer buffer;
  uint32_t crc = 0;
  for (const Piece piece : Pieces(park_.chunk_length(chunk))) {
    read_piece(park_, buffer, chunk, piece);
    crc = crc32c(buffer.data(), piece.length, crc);
  }
  check(chunk, crc);
  park_.map.populate(park_.chunk_place(chunk), park_.chunk_length(chunk));
}

void Parked::verify(uint64_t sample, int32_t threads) const {
  const uint64_t all = park_.header.chunks;
  if (all == 0) return;
  const uint64_t count = sample == 0 ? all : std::min(sample, all);
  const uint64_t start = random_below(all);
  Counter chunks(count);
  // Spread evenly: i * all / count are distinct for distinct i below count.
  fan_out(threads, chunks, [&](uint64_t i) { verify_chunk((start + i * all / count) % all); });
}

bool Parked::matches(Region& region, int32_t threads) const {
  const Region::Hold hold(region, Region::Use::kRead);
  if (hold.span() != park_.header.span) return false;
  std::atomic<bool> same{true};
  Counter chunks(park_.header.chunks);
  fan_out(threads, chunks, [&](uint64_t chunk) {
    Buffer buffer;
    uint32_t crc = 0;
    for (const Piece piece : Pieces(park_.chunk_length(chunk))) {
      copy_out(region, buffer.data(), chunk * kChunk + piece.offset, piece.length);
      crc = crc32c(buffer.data(), piece.length, crc);
    }
    if (crc == park_.table[chunk])
      return park_.map.populate(park_.chunk_place(chunk), park_.chunk_length(chunk));
    same = false;
    chunks.stop();
  });
  return same;
}

void Parked::restore_chunk(const Region& region, uint64_t chunk, bool verify) const {
  uint32_t crc = 0;
  uint32_t* const sum = verify ? &crc : nullptr;
  const uint64_t place = chunk * kChunk;
  if (park_.map) {
    copy_in(region, place, park_.map.at(park_.chunk_place(chunk)), park_.chunk_length(chunk), sum);
  } else {
    Buffer buffer;
    for (const Piece piece : Pieces(park_.chunk_length(chunk))) {
      read_piece(park_, buffer, chunk, piece);
      copy_in(region, place + piece.offset, buffer.data(), piece.length, sum);
    }
  }
  if (verify) check(chunk, crc);
}

void Parked::restore(Region& region, int32_t threads, bool verify) const {
  Region::Hold hold(region, Region::Use::kFill, park_.header.span);
  Counter chunks(park_.header.chunks);
  try {
    check_size(park_);  // or a mapped file cut short since it was opened would end the process
    fan_out(threads, chunks, [&](uint64_t chunk) { restore_chunk(region, chunk, verify); });
  } catch (...) {
    hold.spoil();
    throw;
  }
}

}  // namespace ebb

using ebb::guard;
using ebb::required;

struct ebb_parked {
  ebb::Parked parked;
};

int32_t ebb_parked_create(const char* path, ebb_arena* arena, int32_t tag, uint64_t version, uint64_t layout,
                          int32_t threads, int32_t nice, const uint32_t* cancel, ebb_parked** parked,
                          ebb_error* error) {
  return guard(error, [&] {
    required(parked, "parked") = nullptr;
    ebb::Region& region = required(arena, "arena").arena.region(tag);
    const ebb::ParkOrder order{version, layout, threads, nice, cancel};
    *parked = new ebb_parked{ebb::Parked::create(ebb::path_of(path), region, order)};
  });
}

int32_t ebb_parked_open(const char* path, ebb_parked** parked, ebb_error* error) {
  return guard(error, [&] {
    required(parked, "parked") = nullptr;
    *parked = new ebb_parked{ebb::Parked::open(ebb::path_of(path))};
  });
}

void ebb_parked_close(ebb_parked* parked) { delete parked; }

int32_t ebb_parked_get_info(const ebb_parked* parked, ebb_parked_info* info, ebb_error* error) {
  return guard(error, [&] { required(info, "info") = required(parked, "parked").parked.info(); });
}

int32_t ebb_parked_verify(const ebb_parked* parked, uint64_t sample, int32_t threads, ebb_error* error) {
  return guard(error, [&] { required(parked, "parked").parked.verify(sample, threads); });
}

int32_t ebb_parked_matches(const ebb_parked* parked, ebb_arena* arena, int32_t tag, int32_t threads,
                           int32_t* same, ebb_error* error) {
  return guard(error, [&] {
    ebb::Region& region = required(arena, "arena").arena.region(tag);
    required(same, "same") = required(parked, "parked").parked.matches(region, threads) ? 1 : 0;
  });
}

int32_t ebb_parked_restore(const ebb_parked* parked, ebb_arena* arena, int32_t tag, int32_t threads,
                           int32_t verify, ebb_error* error) {
  return guard(error, [&] {
    ebb::Region& region = required(arena, "arena").arena.region(tag);
    required(parked, "parked").parked.restore(region, threads, verify != 0);
  });
}
