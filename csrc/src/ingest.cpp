// Copies from a file that someone else may be changing: the checksum is of the very bytes that are written.
#include <limits>
#include <string>
#include <vector>

#include "abi.h"
#include "buffer.h"
#include "crc32c.h"
#include "fanout.h"
#include "file.h"

namespace ebb {

namespace {

constexpr uint64_t kShare = uint64_t{4} << 20;  // what one thread takes at a time

struct Share {
  uint64_t range;
  uint64_t offset;
  uint64_t length;
  uint32_t crc = 0;
};

void append_shares(std::vector<Share>& shares, uint64_t number, const ebb_range& range) {
  constexpr auto most = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (range.length > most || range.offset > most - range.length) {
    fail(EBB_INVALID_ARGUMENT, "range " + std::to_string(number) + " ends past any file");
  }
  for (uint64_t done = 0; done < range.length; done += kShare) {
    shares.push_back({number, range.offset + done, std::min(kShare, range.length - done)});
  }
}

void copy_share(int source, int destination, Share& share) {
  Buffer buffer;
  for (const Piece piece : Pieces(share.length)) {
    const uint64_t place = share.offset + piece.offset;
    const uint64_t got = read_at(source, buffer.data(), piece.length, place, "the source");
    if (got != piece.length) {
      fail(EBB_TRUNCATED, "the source ends at " + std::to_string(place + got) + ", within range " +
                              std::to_string(share.range));
    }
    share.crc = crc32c(buffer.data(), piece.length, share.crc);
    write_at(destination, buffer.data(), piece.length, place, "the destination");
  }
}

void ingest(int source, int destination, const ebb_range* ranges, uint64_t count, int32_t threads,
            uint32_t* crcs) {
  std::vector<Share> shares;
  for (uint64_t i = 0; i < count; ++i) append_shares(shares, i, ranges[i]);
  Counter next(shares.size());
  fan_out(threads, next, [&](uint64_t i) { copy_share(source, destination, shares[i]); });
  std::fill_n(crcs, count, 0);
  for (const Share& share : shares) {
    uint32_t& crc = crcs[share.range];
    crc = crc32c_combine(crc, share.crc, share.length);
  }
}

}  // namespace

}  // namespace ebb

int32_t ebb_ingest(int32_t source, int32_t destination, const ebb_range* ranges, uint64_t count,
                   int32_t threads, uint32_t* crcs, ebb_error* error) {
  return ebb::guard(error, [&] {
    if (count != 0) {
      ebb::required(ranges, "ranges");
      ebb::required(crcs, "crcs");
    }
    ebb::ingest(source, destination, ranges, count, threads, crcs);
  });
}
