"""What tests share: the reference, tables of cases, worker processes, tiny studies."""
