#include <fcntl.h>

#include <atomic>
#include <thread>

#include "crc32c.h"
#include "file.h"
#include "status.h"
#include "support.h"

namespace {

using ebb::File;
using ebb_test::Bytes;
using ebb_test::Folder;
using ebb_test::kMiB;
using ebb_test::random_bytes;
using ebb_test::read_file;
using ebb_test::write_file;

class IngestTest : public testing::Test {
 protected:
  void put(const Bytes& bytes) {
    write_file(folder_.file("source"), bytes);
    source_ = File(::open(folder_.file("source").c_str(), O_RDWR | O_CLOEXEC));
    destination_ = File(::open(folder_.file("destination").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  }
  std::vector<uint32_t> ingest(const std::vector<ebb_range>& ranges, int32_t threads) {
    std::vector<uint32_t> crcs(ranges.size());
    ebb_error error = {};
    EXPECT_EQ(ebb_ingest(source_.fd(), destination_.fd(), ranges.data(), ranges.size(), threads, crcs.data(),
                         &error),
              EBB_OK)
        << error.message;
    return crcs;
  }

  Folder folder_;
  File source_;
  File destination_;
};

TEST_F(IngestTest, CopiesRangesOfEverySize) {
  const Bytes bytes = random_bytes(13 * kMiB + 5);
  put(bytes);
  const std::vector<ebb_range> ranges = {
      {0, 1}, {1, 4 * kMiB}, {4 * kMiB + 1, 0}, {4 * kMiB + 1, 9 * kMiB + 4}};
  const std::vector<uint32_t> crcs = ingest(ranges, 3);
  for (size_t i = 0; i < ranges.size(); ++i) {
    EXPECT_EQ(crcs[i], ebb::crc32c(bytes.data() + ranges[i].offset, ranges[i].length, 0)) << i;
  }
  EXPECT_EQ(read_file(folder_.file("destination")), bytes);
}

// Whatever a writer does to the source meanwhile: the checksum is of what was written here.
TEST_F(IngestTest, SumsWhatItWroteWhileTheSourceChanges) {
  put(random_bytes(4 * kMiB));
  std::atomic<bool> stop{false};
  std::thread vandal([&] {
    for (uint32_t seed = 0; !stop; ++seed) {
      const Bytes junk = random_bytes(64 * 1024, seed);
      (void)!::pwrite(source_.fd(), junk.data(), junk.size(), (seed * 7919) % (4 * kMiB - junk.size()));
    }
  });
  for (int round = 0; round < 20; ++round) {
    const uint32_t crc = ingest({{0, 4 * kMiB}}, 2)[0];
    const Bytes written = read_file(folder_.file("destination"));
    ASSERT_EQ(crc, ebb::crc32c(written.data(), written.size(), 0)) << round;
  }
  stop = true;
  vandal.join();
}

TEST_F(IngestTest, NamesTheRangeThatIsNotThere) {
  put(Bytes(100));
  const ebb_range ranges[] = {{0, 100}, {90, 11}};
  uint32_t crcs[2] = {};
  ebb_error error = {};
  EXPECT_EQ(ebb_ingest(source_.fd(), destination_.fd(), ranges, 2, 1, crcs, &error), EBB_TRUNCATED);
  EXPECT_NE(std::string(error.message).find("range 1"), std::string::npos) << error.message;
}

TEST_F(IngestTest, RefusesBadArguments) {
  put(Bytes(100));
  uint32_t crc = 0;
  const ebb_range past[] = {{UINT64_MAX, 1}};
  const ebb_range one[] = {{0, 1}};
  EXPECT_STATUS(EBB_INVALID_ARGUMENT, ebb_ingest(source_.fd(), destination_.fd(), past, 1, 1, &crc, &error));
  EXPECT_STATUS(EBB_INVALID_ARGUMENT,
                ebb_ingest(source_.fd(), destination_.fd(), nullptr, 1, 1, &crc, &error));
  EXPECT_STATUS(EBB_INVALID_ARGUMENT,
                ebb_ingest(source_.fd(), destination_.fd(), one, 1, 1, nullptr, &error));
  EXPECT_STATUS(EBB_OK, ebb_ingest(source_.fd(), destination_.fd(), nullptr, 0, 1, nullptr, &error));
  EXPECT_STATUS(EBB_IO, ebb_ingest(-1, destination_.fd(), one, 1, 1, &crc, &error));
}

// Files without a name in between

TEST(Unborn, LeavesNothingUnlessPublished) {
  const Folder folder;
  {
    const ebb::Unborn unborn(folder.file("a"));
    ebb::write_at(unborn.fd(), "x", 1, 0, "a");
    EXPECT_EQ(folder.count(), 0U);
  }
  EXPECT_EQ(folder.count(), 0U);
}

TEST(Unborn, PublishesOnceOrReplaces) {
  const Folder folder;
  for (const char* text : {"first", "again"}) {
    ebb::Unborn unborn(folder.file("a"));
    ebb::write_at(unborn.fd(), text, 5, 0, "a");
    const File file = unborn.publish(true);
    EXPECT_EQ(ebb::file_size(file.fd(), "a"), 5U);
  }
  EXPECT_EQ(read_file(folder.file("a")), Bytes({'a', 'g', 'a', 'i', 'n'}));
  ebb::Unborn third(folder.file("a"));
  EXPECT_THROW((void)third.publish(false), ebb::Failure);
  EXPECT_EQ(folder.count(), 1U);
}

TEST(OpenRegular, TakesPlainFilesOnly) {
  const Folder folder;
  write_file(folder.file("plain"), Bytes(3));
  ASSERT_EQ(::symlink(folder.file("plain").c_str(), folder.file("link").c_str()), 0);
  EXPECT_TRUE(ebb::open_regular(folder.file("plain"), O_RDONLY));
  for (const std::string& path :
       {folder.file("link"), folder.file(""), std::string("/dev/null"), folder.file("none")}) {
    EXPECT_THROW((void)ebb::open_regular(path, O_RDONLY), ebb::Failure) << path;
  }
}

}  // namespace
