# What the guide does not have: a network of the group's own, a port that is mapped, and a signal that is caught.
job "bridged" {
  group "group" {
    network {
      mode = "bridge"
      port "http" {
        to = 8080
      }
    }

    task "web" {
      driver = "bowline"

      config {
        command = "sh"
        args    = ["-c", "trap 'echo caught' USR1; python3 -m http.server 8080 --directory /local & while :; do wait; done"]
      }

      template {
        data        = "from {{ env \"NOMAD_ALLOC_ID\" }}\n"
        destination = "local/index.html"
      }

      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
