#include "client/imports/ring_reader.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "client/imports/locked_file.h"
#include "common/checksum.h"
#include "proto/convert.h"
#include "statcollect/v1/ingest.pb.h"

namespace statcollect::client {

Result<std::unique_ptr<RingReader>> RingReader::Open(const std::string& path) {
  const auto fd = OpenLocked(path);
  if (!fd.ok()) return fd.status();
  std::unique_ptr<RingReader> reader(new RingReader(*fd));
  STATCOLLECT_RETURN_IF_ERROR(reader->ReadHead());
  STATCOLLECT_RETURN_IF_ERROR(reader->ReadSlots());
  return reader;
}

RingReader::~RingReader() { close(fd_); }

Status RingReader::ReadHead() {
  STATCOLLECT_ASSIGN_OR_RETURN(const std::uint64_t size, SizeOf(fd_));
  std::string bytes;
  STATCOLLECT_RETURN_IF_ERROR(ReadExactly(fd_, 0, sizeof head_, &bytes));
  std::memcpy(&head_, bytes.data(), sizeof head_);
  STATCOLLECT_RETURN_IF_ERROR(ring::Check(head_, size));
  STATCOLLECT_RETURN_IF_ERROR(ReadExactly(fd_, sizeof head_, head_.hello_bytes, &bytes));
  v1::AgentMessage message;
  if (Crc32c(bytes) != head_.hello_crc || !message.ParseFromString(bytes) || !message.has_hello())
    return {Code::kDataLoss, "the hello in it is damaged"};
  STATCOLLECT_ASSIGN_OR_RETURN(session_, FromWire(message.hello()));
  return Status::Ok();
}

Status RingReader::ReadSlots() {
  std::string bytes;
  STATCOLLECT_RETURN_IF_ERROR(
      ReadExactly(fd_, head_.slots_at, head_.slots * sizeof(ring::Slot), &bytes));
  for (std::uint32_t i = 0; i < head_.slots; ++i) {
    ring::Slot slot;
    std::memcpy(&slot, bytes.data() + i * sizeof slot, sizeof slot);
    if (slot.state == ring::kReady && ring::Fits(head_, slot)) tensors_.push_back(slot);
  }
  std::stable_sort(tensors_.begin(), tensors_.end(),
                   [](const auto& a, const auto& b) { return a.step < b.step; });
  // Steps that the agent had not judged yet are there, too.
  std::set<std::uint64_t> steps;
  for (const ring::Slot& tensor : tensors_) steps.insert(steps.end(), tensor.step);
  while (steps.size() > head_.steps + 1) steps.erase(steps.begin());
  std::erase_if(tensors_, [&](const auto& t) { return t.step < *steps.begin(); });
  return Status::Ok();
}

Result<std::string> RingReader::Values(const ring::Slot& tensor) const {
  std::string bytes;
  STATCOLLECT_RETURN_IF_ERROR(
      ReadExactly(fd_, head_.values_at + tensor.offset, tensor.bytes, &bytes));
  return bytes;
}

}  // namespace statcollect::client
