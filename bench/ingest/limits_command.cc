// statcollect-bench limits: what RocksDB, the disk and gRPC do on their own with the same bytes.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "bench/ingest/acknowledger.h"
#include "bench/ingest/commands.h"
#include "bench/ingest/daemon.h"
#include "bench/ingest/network.h"
#include "bench/ingest/random.h"
#include "bench/ingest/record_maker.h"
#include "bench/ingest/sender.h"

namespace statcollect::bench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kKeyBytes = 20, kRowBytes = 120;
constexpr std::size_t kGroupBytes = 1
                                    << 20;  // written, and synced where that is asked for, at once

struct LimitsOptions {
  std::string directory;
  std::uint64_t records = 4'000'000;
  std::size_t block_bytes = 25'000;
  std::size_t record_bytes = 100;  // in a block
  std::uint32_t streams = 8;
};

double CpuSeconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

// Bytes that no compressor makes smaller, from random places of a pool.
class Noise {
 public:
  Noise() : pool_(std::size_t{8} << 20, '\0') {
    for (std::size_t at = 0; at < pool_.size(); at += 8) {
      const std::uint64_t word = Mix(at);
      std::memcpy(pool_.data() + at, &word, sizeof(word));
    }
  }
  std::string_view Take(std::size_t bytes) {
    counter_ = Mix(counter_);
    return std::string_view(pool_).substr(counter_ % (pool_.size() - bytes), bytes);
  }

 private:
  std::string pool_;
  std::uint64_t counter_ = 1;
};

void Check(const std::string& attempted, const rocksdb::Status& status) {
  if (!status.ok()) throw std::runtime_error(attempted + ": " + status.ToString());
}

// A table of one measurement; `durable` runs from the first write to the last return, `settled`
// until all lies in tables.
struct Row {
  std::string name;
  std::uint64_t records = 0, bytes = 0;
  double seconds = 0, settled_seconds = 0, cpu_seconds = 0;
  std::uint64_t stored_bytes = 0;
};

// As server/store opens its family of statistics.
std::unique_ptr<rocksdb::DB> OpenDb(const std::string& directory) {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.compression = rocksdb::kLZ4Compression;
  options.compaction_style = rocksdb::kCompactionStyleUniversal;
  options.write_buffer_size = 64 << 20;
  options.max_background_jobs = 2;
  options.max_total_wal_size = 256 << 20;
  rocksdb::BlockBasedTableOptions table;
  table.block_size = 64 << 10;
  table.format_version = 5;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  rocksdb::DB* db = nullptr;
  Check("open a database in " + directory, rocksdb::DB::Open(options, directory, &db));
  return std::unique_ptr<rocksdb::DB>(db);
}

void PutBigEndian(char* to, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) to[i] = static_cast<char>(value >> (8 * (bytes - 1 - i)));
}

// Keys as the store's, ranks in turn within a step of 1,000 activations.
std::string_view StatKey(std::uint64_t record, std::uint32_t ranks, char* key) {
  const std::uint64_t step = record / 1000;
  PutBigEndian(key, 1, 4);
  PutBigEndian(key + 4, step % ranks, 4);
  PutBigEndian(key + 8, step / ranks, 8);
  PutBigEndian(key + 16, record % 1000, 4);
  return {key, kKeyBytes};
}

// "Pending" may stay true with universal compaction although nothing can be picked: only what runs
// counts.
void AwaitCompactions(rocksdb::DB& db) {
  std::uint64_t running = 0;
  while (db.GetIntProperty("rocksdb.num-running-compactions", &running) && running > 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

// Values of value_bytes, each of records_each records, in write batches of about kGroupBytes.
Row Puts(const LimitsOptions& o, const std::string& name, std::size_t value_bytes,
         std::size_t records_each, bool sync) {
  const std::string directory = o.directory + "/limits-rocksdb";
  fs::remove_all(directory);
  Row row{.name = name, .records = o.records};
  Noise noise;
  const double cpu = CpuSeconds();
  {
    const auto db = OpenDb(directory);
    rocksdb::WriteOptions write;
    write.sync = sync;
    const auto begin = Clock::now();
    rocksdb::WriteBatch batch;
    char key[kKeyBytes];
    const auto flush_batch = [&] {
      Check("write", db->Write(write, &batch));
      batch.Clear();
    };
    for (std::uint64_t record = 0; record < o.records; record += records_each) {
      const std::string_view k = StatKey(record, o.streams, key), v = noise.Take(value_bytes);
      Check("put", batch.Put({k.data(), k.size()}, {v.data(), v.size()}));
      row.bytes += k.size() + v.size();
      if (batch.GetDataSize() >= kGroupBytes) flush_batch();
    }
    flush_batch();
    row.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    Check("flush", db->Flush({}));
    AwaitCompactions(*db);
    row.settled_seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  }
  row.cpu_seconds = CpuSeconds() - cpu;
  row.stored_bytes = MeasureStored(directory).tables;
  fs::remove_all(directory);
  return row;
}

// The bytes of as many blocks in one file.
Row SequentialFile(const LimitsOptions& o, std::uint64_t sync_bytes) {
  const std::string path = o.directory + "/limits-file";
  Row row{.name = "file, fdatasync each " + std::to_string(sync_bytes >> 20) + " MiB",
          .records = o.records};
  Noise noise;
  const double cpu = CpuSeconds();
  const int file = open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
  if (file < 0) throw std::runtime_error("write " + path + ": " + std::strerror(errno));
  const auto begin = Clock::now();
  const std::uint64_t total = o.records * o.record_bytes;
  bool ok = true;
  while (ok && row.bytes < total) {
    const std::string_view bytes = noise.Take(kGroupBytes);
    ok = write(file, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
    row.bytes += bytes.size();
    if (row.bytes % sync_bytes == 0) ok = ok && fdatasync(file) == 0;
  }
  ok = ok && fdatasync(file) == 0;
  row.seconds = row.settled_seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const int error = errno;
  close(file);
  fs::remove(path);
  if (!ok) throw std::runtime_error("write " + path + ": " + std::strerror(error));
  row.stored_bytes = row.bytes;
  row.cpu_seconds = CpuSeconds() - cpu;
  return row;
}

// The protocol and its messages, to a server that acknowledges and stores nothing. Processor time:
// of both sides.
Row Stream(const LimitsOptions& o, std::uint32_t streams, std::uint32_t sketch) {
  auto server = SpawnedServer::Start(fs::read_symlink("/proc/self/exe"), {"acknowledge"});
  if (!server.ok()) throw std::runtime_error(server.status().message());
  const Network network(1000, 0);
  MakerOptions maker_options;
  maker_options.sketch = sketch;
  const RecordMaker maker(network, maker_options);
  SendOptions send;
  send.collector = server->address();
  send.streams = streams;
  send.steps = std::max<std::uint64_t>(1, o.records / 1000 / streams);
  Progress progress(streams);
  const double cpu = CpuSeconds();
  const auto sent = Send(send, maker, &progress);
  const double own_cpu = CpuSeconds() - cpu;
  if (!sent.ok()) throw std::runtime_error(sent.status().message());
  ProcessUse use;
  if (const Status stopped = server->Stop(&use); !stopped.ok())
    throw std::runtime_error(stopped.message());
  return {.name = "gRPC stream, no store: " + std::to_string(streams) + " streams, sketch " +
                  std::to_string(sketch),
          .records = sent->stat_records,
          .bytes = sent->bytes,
          .seconds = sent->seconds,
          .settled_seconds = sent->seconds,
          .cpu_seconds = own_cpu + use.cpu_seconds};
}

json ToJson(const Row& row) {
  const auto records = static_cast<double>(row.records);
  return {{"name", row.name},
          {"records", row.records},
          {"bytes", row.bytes},
          {"seconds", row.seconds},
          {"settled_seconds", row.settled_seconds},
          {"records_per_second", records / row.seconds},
          {"settled_records_per_second", records / row.settled_seconds},
          {"megabytes_per_second", 1e-6 * static_cast<double>(row.bytes) / row.seconds},
          {"cpu_ns_per_record", 1e9 * row.cpu_seconds / records},
          {"stored_bytes_per_record", static_cast<double>(row.stored_bytes) / records}};
}

int Limits(const LimitsOptions& o) {
  fs::create_directories(o.directory);
  const std::size_t each = std::max<std::size_t>(1, o.block_bytes / o.record_bytes);
  const std::string row_text = "RocksDB rows of " + std::to_string(kRowBytes) + " B";
  const std::string block_text =
      "RocksDB blocks of " + std::to_string(each * o.record_bytes) + " B";
  const std::function<Row()> measurements[] = {
      [&] { return Puts(o, row_text + ", not synced", kRowBytes, 1, false); },
      [&] { return Puts(o, row_text + ", synced each MiB", kRowBytes, 1, true); },
      [&] { return Puts(o, block_text + ", not synced", each * o.record_bytes, each, false); },
      [&] { return Puts(o, block_text + ", synced each MiB", each * o.record_bytes, each, true); },
      [&] { return SequentialFile(o, 1 << 20); },
      [&] { return SequentialFile(o, 8 << 20); },
      [&] { return SequentialFile(o, 64 << 20); },
      [&] { return Stream(o, o.streams, 16); },
      [&] { return Stream(o, o.streams, 0); },
      [&] { return Stream(o, 256, 16); },
  };
  json rows = json::array();
  std::fprintf(stderr, "%-46s %12s %12s %8s %8s\n", "", "records/s", "settled", "MB/s", "CPU ns");
  for (const auto& measure : measurements) {
    const json row = ToJson(measure());
    std::fprintf(stderr, "%-46s %12.0f %12.0f %8.0f %8.0f\n",
                 row["name"].get<std::string>().c_str(), row["records_per_second"].get<double>(),
                 row["settled_records_per_second"].get<double>(),
                 row["megabytes_per_second"].get<double>(), row["cpu_ns_per_record"].get<double>());
    rows.push_back(row);
  }
  const json out = {{"parameters",
                     {{"records", o.records},
                      {"block_bytes", o.block_bytes},
                      {"record_bytes", o.record_bytes},
                      {"streams", o.streams}}},
                    {"rows", rows}};
  std::cout << out.dump(1) << '\n';
  return 0;
}

}  // namespace

Command AddLimits(CLI::App& app) {
  auto o = std::make_shared<LimitsOptions>();
  CLI::App* command =
      app.add_subcommand("limits", "RocksDB, a file and gRPC alone with as many bytes");
  command
      ->add_option("--dir", o->directory,
                   "Folder for the files; on the disk that is to be measured")
      ->required();
  command->add_option("--records", o->records, "Records of each measurement")
      ->check(CLI::Range(1000ull, 1'000'000'000ull))
      ->capture_default_str();
  command->add_option("--block-bytes", o->block_bytes, "Bytes of a block, about")
      ->check(CLI::Range(100u, 4u << 20))
      ->capture_default_str();
  command->add_option("--record-bytes", o->record_bytes, "Bytes of a record in it")
      ->check(CLI::Range(1u, 10'000u))
      ->capture_default_str();
  command->add_option("--streams", o->streams, "Streams and ranks")
      ->check(CLI::Range(1u, 4096u))
      ->capture_default_str();
  return [o] { return Limits(*o); };
}

Command AddAcknowledge(CLI::App& app) {
  app.add_subcommand("acknowledge", "A collector without a store, on a free port until SIGTERM");
  return [] { return ServeAcknowledger(); };
}

}  // namespace statcollect::bench
