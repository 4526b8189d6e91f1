// Runs a vectors file (`evictcheck vectors -o FILE`) against a port as the port's own CI would: one file, with
// nothing of evictcheck's in it. The format is described in properties/vectors.py.
//
//     c++ -std=c++17 -Iinclude vectors_reader.cpp src/vllm/v1/core/encoder_cache_manager.cpp -o vectors_reader
//     ./vectors_reader FILE
//
// Exits 0 if every call is answered as expected, 1 at the first that is not, 2 if the file cannot be read.
#include "vllm/v1/core/encoder_cache_manager.h"

#include <cstdint>
#include <exception>
#include <fstream>
#include <iostream>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

using Manager = vllm::v1::core::EncoderCacheManager;

struct Item {
  std::string mm_hash;
  std::int64_t embeds;
};
using Request = std::vector<Item>;

struct BadFile : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// --- As much of JSON as the file has: known keys in a known order, whole numbers, strings without escapes ---

void Expect(std::istream& in, const std::string& text) {
  for (const char wanted : text) {
    char found = '\0';
    if (!(in >> found) || found != wanted) throw BadFile("there is no " + text + " where it must be");
  }
}

bool GoesOn(std::istream& in) { return (in >> std::ws).peek() == ',' && in.get() == ','; }

std::int64_t Number(std::istream& in) {
  std::int64_t number = 0;
  if (!(in >> number)) throw BadFile("there is no number where one must be");
  return number;
}

std::string String(std::istream& in) {
  Expect(in, "\"");
  std::string text;
  std::getline(in, text, '"');
  if (in.eof() || text.find('\\') != std::string::npos) throw BadFile("a string has no end");
  return text;
}

std::vector<Request> Requests(std::istream& in) {
  std::vector<Request> requests;
  Expect(in, "[");
  do {
    Request items;
    Expect(in, "[");
    do {
      std::string mm_hash = String(in);
      Expect(in, ",");
      items.push_back({std::move(mm_hash), Number(in)});
    } while (GoesOn(in));
    Expect(in, "]");
    requests.push_back(std::move(items));
  } while (GoesOn(in));
  Expect(in, "]");
  return requests;
}

// --- Calls -------------------------------------------------------------------------------------------------

std::string Report(Manager& manager) {
  std::string report;
  const auto freed = manager.GetFreedMmHashes();
  for (const std::string& mm_hash : std::set<std::string>(freed.begin(), freed.end())) {
    report += (report.empty() ? "" : ",") + mm_hash;
  }
  return report;
}

const Item& ItemOf(const std::vector<Request>& requests, const std::string& token) {
  try {
    const Request& request = requests.at(static_cast<std::size_t>(token.at(1) - '1'));
    return request.at(static_cast<std::size_t>(token.at(2) - '0'));
  } catch (const std::out_of_range&) {
    throw BadFile("there is no such call as " + token);
  }
}

// Makes the call that a token names, and gives the token as it would read with this port's answer in it.
std::string Made(Manager& manager, const std::vector<Request>& requests, const std::string& token) {
  const char kind = token.at(0);
  if (kind == 'd') return "d=" + Report(manager);
  if (kind == 'z') {
    manager.Reset();
    return "z";
  }
  const Item& item = ItemOf(requests, token);
  const std::string id = std::string("r") + token[1];
  const int input = token[2] - '0';
  std::string made = token.substr(0, 3);
  if (kind == 'k') {
    made += manager.CheckAndUpdateCache(id, input, item.mm_hash) ? '+' : '-';
  } else if (kind == 'q') {
    std::istringstream rest(token.substr(3));
    Expect(rest, ".");
    const std::int64_t budget = Number(rest);
    Expect(rest, ".");
    const std::int64_t promised = Number(rest);
    made += '.' + std::to_string(budget) + '.' + std::to_string(promised);
    made += manager.CanAllocate(item.embeds, budget, promised) ? '+' : '-';
  } else if (kind == 'a') {
    manager.Allocate(id, input, item.mm_hash, item.embeds);
  } else if (kind == 'f') {
    manager.FreeEncoderInput(id, input, item.mm_hash, item.embeds);
  } else {
    throw BadFile("there is no such call as " + token);
  }
  return made;
}

// Runs one trace against a fresh manager, and counts its calls; says where it is answered otherwise, or nothing.
std::string Difference(const std::string& line, std::int64_t& calls) {
  std::istringstream in(line);
  Expect(in, "{\"capacity\":");
  std::int64_t free = Number(in), freeable = free;
  Manager manager(free);
  Expect(in, ",\"requests\":");
  const std::vector<Request> requests = Requests(in);
  Expect(in, ",\"calls\":");
  std::istringstream tokens(String(in));
  Expect(in, "}");
  std::int64_t number = 0;
  for (std::string expected; tokens >> expected; ++calls) {
    std::string got;
    try {
      got = Made(manager, requests, expected);
    } catch (const BadFile&) {
      throw;
    } catch (const std::exception& error) {
      got = std::string("an exception: ") + error.what();
    }
    if (manager.num_free_slots() != free || manager.num_freeable_slots() != freeable) {
      free = manager.num_free_slots();
      freeable = manager.num_freeable_slots();
      got += '/' + std::to_string(free) + '.' + std::to_string(freeable);
    }
    ++number;
    if (got != expected) return "call " + std::to_string(number) + ": expected " + expected + ", got " + got;
  }
  if (number == 0) throw BadFile("it has no calls");
  return "";
}

int main(int count, char** arguments) {
  if (count != 2) {
    std::cerr << "usage: " << arguments[0] << " FILE\n";
    return 2;
  }
  std::ifstream file(arguments[1]);
  std::string line;
  std::int64_t traces = 0, calls = 0;
  try {
    if (!std::getline(file, line)) throw BadFile("it cannot be read, or is empty");
    std::istringstream header(line);
    Expect(header, "{\"format\":\"evictcheck-vectors/1\",\"scope\":");
    String(header);
    Expect(header, ",\"traces\":");
    const std::int64_t announced = Number(header);
    while (std::getline(file, line)) {
      ++traces;
      const std::string difference = Difference(line, calls);
      if (!difference.empty()) {
        std::cout << "trace " << traces << ", " << difference << '\n';
        return 1;
      }
    }
    if (traces != announced || traces == 0) {
      throw BadFile(std::to_string(traces) + " traces, where " + std::to_string(announced) + " are announced");
    }
  } catch (const std::exception& error) {
    std::cerr << arguments[1] << ", line " << traces + 1 << ": " << error.what() << '\n';
    return 2;
  }
  std::cout << traces << " traces, " << calls << " calls: every answer as expected\n";
  return 0;
}
